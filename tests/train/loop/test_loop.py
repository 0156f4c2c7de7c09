"""The training loop: exact resume, best state, early stop, accumulation, several processes."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState
from torch import nn

from tests.train.two_processes import ROOT, run_in_two_processes
from train.batches.text_batches import Batch, TextBatches
from train.loop.loop_settings import LoopSettings
from train.loop.optimizer_update import Outcome, parameter_groups
from train.loop.progress import Evaluation, SilentProgress, StepReport
from train.loop.training_loop import TrainingResult, default_accelerator, run_training

SETTINGS = LoopSettings(
    steps=12,
    batch_size=4,
    learning_rate=1e-2,
    warmup_steps=3,
    penalty_weight=0.1,
    penalty_ramp_steps=6,
    evaluate_every=3,
    checkpoint_every=4,
    seed=5,
)


class _Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 8)
        self.dropout = nn.Dropout(0.3)
        self.out = nn.Linear(8, 1)
        self.unused = nn.Linear(2, 2)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        mean_BD = (self.table(input_ids) * attention_mask[..., None]).sum(1) / attention_mask.sum(1, keepdim=True)
        return self.out(self.dropout(mean_BD))[:, 0]  # type: ignore[no-any-return]


def objective(model: nn.Module, batch: Batch, step: int) -> Outcome:
    """Predict the mean id, scaled; the penalty is the mean square of the prediction."""
    predicted_B = model(**batch)
    target_B = batch["input_ids"].sum(1) / batch["attention_mask"].sum(1) / 50
    loss = (predicted_B - target_B).square().mean()
    penalty = predicted_B.square().mean()
    parts = {"error": loss.detach(), "penalty": penalty.detach()}
    return Outcome(loss=loss, penalty=penalty, parts=parts, largest_activation=predicted_B.detach().abs().max())


def make_model() -> _Tiny:
    torch.manual_seed(0)
    return _Tiny()


def make_batches() -> TextBatches:
    generator = np.random.default_rng(0)
    rows = [generator.integers(0, 50, size=generator.integers(2, 9)) for _ in range(30)]
    return TextBatches(rows, batch_size=4, pad_id=0, seed=5)


def evaluate(model: nn.Module) -> Evaluation:
    """Minus the error on fixed rows; draws random numbers, which must not disturb the run."""
    torch.rand(7)
    error = objective(model, make_batches().batch(1000), 0).loss
    return Evaluation(score=-float(error), figures={"error": float(error)})


class _Watcher(SilentProgress):
    def __init__(self, at_step: Callable[[int], None] = lambda step: None) -> None:
        self.reports: list[StepReport] = []
        self.at_step = at_step

    def on_step(self, report: StepReport) -> None:
        self.reports.append(report)
        self.at_step(report.step)


def _run(
    out_dir: Path, settings: LoopSettings = SETTINGS, *, watcher: _Watcher | None = None
) -> tuple[_Tiny, TrainingResult]:
    model = make_model()
    result = run_training(
        model,
        objective,
        make_batches(),
        settings,
        out_dir=out_dir,
        evaluate=evaluate,
        progress=watcher,
        accelerator=default_accelerator(settings, cpu=True),
    )
    return model, result


def _log_without_times(out_dir: Path) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in (out_dir / "log.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "rows_per_second"} for line in lines]


def _assert_equal(one: nn.Module, two: nn.Module) -> None:
    for (name, a), (_, b) in zip(one.state_dict().items(), two.state_dict().items(), strict=True):
        assert torch.equal(a, b), f"{name}: largest difference {(a - b).abs().max()}"


def test_training_lowers_the_loss_and_reports_every_update(tmp_path: Path) -> None:
    watcher = _Watcher()
    _, result = _run(tmp_path, replace(SETTINGS, steps=60, dropout=False, penalty_weight=0.01), watcher=watcher)
    assert [report.step for report in watcher.reports] == list(range(1, 61))
    assert watcher.reports[-1].parts["error"] < watcher.reports[0].parts["error"] / 2
    assert watcher.reports[0].largest_activation is not None
    assert result.steps == 60
    assert not result.stopped_early


@pytest.mark.parametrize("killed_at", [2, 5, 8, 11])
def test_an_interrupted_and_resumed_run_equals_the_uninterrupted_one_bit_for_bit(
    tmp_path: Path, killed_at: int
) -> None:
    whole, whole_result = _run(tmp_path / "whole")

    def stop(step: int) -> None:
        if step == killed_at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _run(tmp_path / "parts", watcher=_Watcher(stop))
    watcher = _Watcher()
    resumed, resumed_result = _run(tmp_path / "parts", watcher=watcher)
    assert watcher.reports[0].step == (killed_at - 1) // 4 * 4 + 1
    _assert_equal(whole, resumed)
    assert resumed_result.history == whole_result.history
    assert _log_without_times(tmp_path / "parts") == _log_without_times(tmp_path / "whole")


def test_a_run_killed_by_the_system_resumes_to_the_same_weights(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from tests.train.loop import test_loop as t\n"
        "kill = lambda step: os.kill(os.getpid(), signal.SIGKILL) if step == 10 else None\n"
        "t._run(Path(sys.argv[1]), watcher=t._Watcher(kill))\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path / "killed")], cwd=ROOT, check=False)
    assert killed.returncode == -signal.SIGKILL
    whole, _ = _run(tmp_path / "whole")
    resumed, _ = _run(tmp_path / "killed")
    _assert_equal(whole, resumed)


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    first, result = _run(tmp_path)
    watcher = _Watcher()
    again, repeated = _run(tmp_path, watcher=watcher)
    assert watcher.reports == []
    assert repeated == result
    _assert_equal(first, again)


def test_a_checkpoint_of_other_settings_is_refused(tmp_path: Path) -> None:
    _run(tmp_path)
    with pytest.raises(ValueError, match=r"learning_rate = 0\.01, this run has 0\.5"):
        _run(tmp_path, replace(SETTINGS, learning_rate=0.5))


def test_the_model_ends_in_its_best_state(tmp_path: Path) -> None:
    settings = replace(SETTINGS, learning_rate=3.0, penalty_weight=0.0, penalty_ramp_steps=0, evaluate_at_start=True)
    model, result = _run(tmp_path, settings)
    assert result.best_step == 0, "a rate this large should only do harm"
    _assert_equal(model, make_model())
    assert [entry["step"] for entry in result.history] == [0, 3, 6, 9, 12]


def test_patience_ends_a_run_without_progress(tmp_path: Path) -> None:
    settings = replace(
        SETTINGS, learning_rate=3.0, penalty_weight=0.0, penalty_ramp_steps=0, evaluate_at_start=True, patience=2
    )
    _, result = _run(tmp_path, settings)
    assert (result.steps, result.stopped_early) == (6, True)


def test_accumulated_parts_equal_the_whole_batch(tmp_path: Path) -> None:
    settings = replace(SETTINGS, dropout=False, clip_norm=None)
    whole, _ = _run(tmp_path / "whole", settings)
    parts, _ = _run(tmp_path / "parts", replace(settings, accumulation=4))
    for (name, a), (_, b) in zip(whole.state_dict().items(), parts.state_dict().items(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0, msg=name)  # sums in another order, then AdamW's division


@pytest.mark.slow
def test_two_processes_train_like_one(tmp_path: Path) -> None:
    run_in_two_processes(
        tmp_path,
        "from safetensors.torch import save_file",
        "from tests.train.loop import test_loop as t",
        "model, _ = t._run(out / 'two', replace(t.SETTINGS, dropout=False, clip_norm=None))",
        "save_file(dict(model.state_dict()), out / f'two/rank{PartialState().process_index}.safetensors')",
    )
    one, _ = _run(tmp_path / "one", replace(SETTINGS, dropout=False, clip_norm=None))
    from safetensors.torch import load_file

    for rank in (0, 1):
        stored = load_file(tmp_path / "two" / f"rank{rank}.safetensors")
        for name, tensor in one.state_dict().items():
            torch.testing.assert_close(stored[name], tensor, atol=1e-5, rtol=0, msg=name)
    assert [line["step"] for line in _log_without_times(tmp_path / "two") if line["kind"] == "step"] == list(
        range(1, 13)
    )


def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_step(tmp_path: Path) -> None:
    def diverging(model: nn.Module, batch: Batch, step: int) -> Outcome:
        outcome = objective(model, batch, step)
        return replace(outcome, loss=outcome.loss * float("nan"))

    with pytest.raises(ValueError, match="step 1: loss became nan"):
        run_training(
            make_model(),
            diverging,
            make_batches(),
            SETTINGS,
            out_dir=tmp_path,
            accelerator=default_accelerator(SETTINGS, cpu=True),
        )


@pytest.fixture
def fresh_accelerate_state() -> Iterator[None]:
    """Accelerate allows one precision per process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def test_mixed_precision_trains_in_bfloat16_evaluates_in_float32_and_leaves_no_wrapper(
    tmp_path: Path, fresh_accelerate_state: None
) -> None:
    settings = replace(SETTINGS, mixed_precision="bf16", evaluate_every=0, checkpoint_every=0)
    seen: dict[str, set[torch.dtype]] = {"training": set(), "evaluation": set()}
    model = make_model()
    hook = model.out.register_forward_hook(
        lambda module, args, output: seen["training" if torch.is_grad_enabled() else "evaluation"].add(output.dtype)
    )
    run_training(
        model,
        objective,
        make_batches(),
        settings,
        out_dir=tmp_path,
        evaluate=evaluate,
        accelerator=default_accelerator(settings, cpu=True),
    )
    hook.remove()
    assert seen == {"training": {torch.bfloat16}, "evaluation": {torch.float32}}
    assert not {"forward", "_original_forward"} & model.__dict__.keys()
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_weight_decay_spares_biases_and_norms_unless_asked() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    decayed = parameter_groups(model, SETTINGS)[0]
    assert [id(p) for p in decayed["params"]] == [id(model[0].weight)]
    with_norms = parameter_groups(model, replace(SETTINGS, decay_norms=True))[0]
    assert [id(p) for p in with_norms["params"]] == [id(model[0].weight), id(model[1].weight)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": -1}, "steps is -1"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"decay": "step"}, "unknown decay 'step'"),
        ({"accumulation": 3}, "cannot be split into 3"),
        ({"penalty_weight": 0.0}, "penalty_ramp_steps has no effect"),
        ({"evaluate_every": 0, "patience": 1}, "patience has no effect"),
        ({"warmup_steps": 13}, "more than the run's 12"),
    ],
)
def test_settings_out_of_range_or_without_effect_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SETTINGS, **change)  # type: ignore[arg-type]
