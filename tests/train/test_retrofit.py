"""Retrofit of a small encoder with planted outliers, its arms, its resume, and what it refuses."""

import copy
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from tests.train.encoders import tiny_encoder, tiny_masked_lm
from train.attention.settings import AttentionSettings
from train.batches.text_batches import TokenRow
from train.conversion.convert import convert
from train.loop.progress import SilentProgress, StepReport
from train.loop.training_loop import default_accelerator
from train.retrofit import RetrofitResult, retrofit
from train.retrofit_settings import RetrofitSettings

GATED = AttentionSettings(gate="linear", gate_init=0.5, gate_scale=2.0)
SETTINGS = RetrofitSettings(
    steps=12,
    batch_size=8,
    max_length=16,
    learning_rate=1e-2,
    warmup_steps=4,
    penalty_weight=1e-3,
    penalty_ramp_steps=10,
    evaluate_every=6,
    checkpoint_every=4,
    calibration_rows=16,
    activation_bits=4,  # so small a model does not suffer at 8
)


def _rows(count: int, *, seed: int) -> list[TokenRow]:
    generator = np.random.default_rng(seed)
    return [generator.integers(5, 50, size=generator.integers(3, 12)) for _ in range(count)]


def _teacher() -> PreTrainedModel:
    """An encoder with one FFN channel far out: the LayerNorm after it squashes all others, as real outliers do."""
    model = tiny_encoder()
    with torch.no_grad():
        model.get_submodule("encoder.layer.0.output.dense").bias[3] = 60.0  # type: ignore[operator]
    return model


class _Reports(SilentProgress):
    def __init__(self, *, stop_at: float = math.inf) -> None:
        self.steps: list[StepReport] = []
        self.stop_at = stop_at

    def on_step(self, report: StepReport) -> None:
        self.steps.append(report)
        if report.step == self.stop_at:
            raise KeyboardInterrupt


def _run(
    out_dir: Path,
    settings: RetrofitSettings = SETTINGS,
    *,
    attention: AttentionSettings = GATED,
    reports: _Reports | None = None,
) -> tuple[PreTrainedModel, RetrofitResult]:
    teacher = _teacher()
    student = copy.deepcopy(teacher)
    convert(student, attention)
    result = retrofit(
        teacher,
        student,
        _rows(64, seed=0),
        settings,
        out_dir,
        evaluation_rows=_rows(24, seed=1),
        progress=reports,
        accelerator=default_accelerator(settings.loop_settings(), cpu=True),
    )
    return student, result


def test_a_retrofit_shrinks_outliers_and_makes_the_integer_model_agree_better(tmp_path: Path) -> None:
    reports = _Reports()
    settings = replace(SETTINGS, steps=50, evaluate_every=0, checkpoint_every=0)
    _, result = _run(tmp_path, settings, reports=reports)
    first, last = reports.steps[0], reports.steps[-1]
    assert first.largest_activation is not None
    assert last.largest_activation is not None
    assert last.largest_activation < 0.6 * first.largest_activation
    before, after = result.history
    assert after["quantized_relative_error"] < 0.85 * before["quantized_relative_error"]
    assert after["quantized_pearson"] > before["quantized_pearson"]
    assert result.best_step == 50


def test_the_untouched_student_computes_what_the_teacher_does(tmp_path: Path) -> None:
    _, result = _run(tmp_path, replace(SETTINGS, steps=1, warmup_steps=0))
    assert result.history[0]["step"] == 0
    assert result.history[0]["float_relative_error"] < 1e-5


@pytest.mark.parametrize("attention", [GATED, AttentionSettings()])
@pytest.mark.parametrize("penalised", [True, False])
def test_each_arm_runs_and_reports_its_parts(tmp_path: Path, attention: AttentionSettings, penalised: bool) -> None:
    settings = replace(SETTINGS, steps=2, warmup_steps=0, checkpoint_every=0)
    if not penalised:
        settings = replace(settings, penalty_weight=0.0, penalty_ramp_steps=0)
    reports = _Reports()
    _run(tmp_path, settings, attention=attention, reports=reports)
    assert ("penalty" in reports.steps[0].parts) == penalised
    assert {"hidden", "similarity"} <= set(reports.steps[0].parts)
    assert reports.steps[0].largest_activation == pytest.approx(75, rel=0.1)


def test_without_gates_and_penalty_nothing_is_left_to_learn(tmp_path: Path) -> None:
    settings = replace(SETTINGS, steps=3, warmup_steps=0, penalty_weight=0.0, penalty_ramp_steps=0)
    reports = _Reports()
    _run(tmp_path, settings, attention=AttentionSettings(), reports=reports)
    assert reports.steps[0].loss < 1e-9


def test_a_stopped_retrofit_resumes_to_the_same_student(tmp_path: Path) -> None:
    whole, result = _run(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        _run(tmp_path / "parts", reports=_Reports(stop_at=7))
    reports = _Reports()
    resumed, again = _run(tmp_path / "parts", replace(SETTINGS, checkpoint_every=5), reports=reports)
    assert reports.steps[0].step == 5
    assert again.history == result.history
    for (name, one), (_, two) in zip(whole.state_dict().items(), resumed.state_dict().items(), strict=True):
        assert torch.equal(one, two), name


def test_a_retrofit_with_other_settings_is_not_resumed(tmp_path: Path) -> None:
    _run(tmp_path, replace(SETTINGS, steps=4, evaluate_every=0))
    with pytest.raises(ValueError, match=r"penalty_width = 5\.0, this run has 4\.0"):
        _run(tmp_path, replace(SETTINGS, steps=4, evaluate_every=0, penalty_width=4.0))


def test_quantization_aware_updates_fit_the_student_to_its_grid_and_resume_exactly(tmp_path: Path) -> None:
    settings = replace(SETTINGS, steps=24, evaluate_every=0)
    _, plain = _run(tmp_path / "plain", settings)
    settings = replace(settings, quantization_aware_steps=12)
    aware, result = _run(tmp_path / "aware", settings)
    error = "quantized_relative_error"
    assert result.history[-1][error] < 0.95 * plain.history[-1][error]
    with pytest.raises(KeyboardInterrupt):
        _run(tmp_path / "parts", settings, reports=_Reports(stop_at=19))
    resumed, again = _run(tmp_path / "parts", settings)
    assert again.history == result.history
    for (name, one), (_, two) in zip(aware.state_dict().items(), resumed.state_dict().items(), strict=True):
        assert torch.equal(one, two), name


def test_only_the_trunk_of_a_model_with_a_head_is_trained(tmp_path: Path) -> None:
    teacher = tiny_masked_lm()
    student = copy.deepcopy(teacher)
    convert(student, GATED)
    before = {name: tensor.clone() for name, tensor in student.state_dict().items()}
    settings = replace(SETTINGS, steps=2, warmup_steps=0, penalty_weight=1.0, evaluate_every=0)
    retrofit(teacher, student, _rows(16, seed=0), settings, tmp_path, evaluation_rows=_rows(4, seed=1))
    after = student.state_dict()
    assert torch.equal(
        after["cls.predictions.transform.dense.weight"], before["cls.predictions.transform.dense.weight"]
    )


def test_unusable_input_is_refused(tmp_path: Path) -> None:
    teacher, student = _teacher(), _teacher()
    convert(student, GATED)

    def run(rows: list[TokenRow], evaluation: list[TokenRow], settings: RetrofitSettings = SETTINGS) -> None:
        retrofit(teacher, student, rows, settings, tmp_path, evaluation_rows=evaluation)

    good = _rows(8, seed=0)
    with pytest.raises(ValueError, match="training row 8 has 17 tokens; expected at most 16"):
        run([*good, np.arange(17)], good)
    with pytest.raises(ValueError, match="2 evaluation rows; expected at least 3"):
        run(good, good[:2])
    with pytest.raises(ValueError, match="max_length is 64; the model has 32 positions"):
        run(good, good, replace(SETTINGS, max_length=64))
    with pytest.raises(ValueError, match="4 training rows do not fill a batch of 8"):
        run(good[:4], good)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps is 0"),
        ({"penalty_weight": 0.0}, "penalty_ramp_steps has no effect"),
        ({"penalty_width": -1.0}, "penalty width is -1"),
        ({"evaluation_profile": "ort"}, "unknown evaluation_profile 'ort'"),
        ({"activation_bits": 32}, "activation_bits is 32"),
        ({"calibration_rows": 0}, "calibration_rows is 0"),
        ({"embedding_weight": -1.0}, "embedding_weight is -1"),
        ({"quantization_aware_steps": 13}, "quantization_aware_steps is 13"),
    ],
)
def test_settings_out_of_range_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SETTINGS, **change)  # type: ignore[arg-type]


def test_settings_survive_a_round_trip_and_a_misspelt_one_is_named() -> None:
    assert RetrofitSettings.from_dict(SETTINGS.to_dict()) == SETTINGS
    with pytest.raises(ValueError, match="unknown retrofit setting 'step'"):
        RetrofitSettings.from_dict({"step": 3})
