"""Training on a labelled task: it learns, resumes exactly with dropout and fresh masks, and is measured while it runs."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from tests.train.two_processes import run_in_two_processes
from train.attention.settings import AttentionSettings
from train.batches.masking import MaskedWindows, Masking
from train.batches.token_windows import TokenWindows, spread_windows
from train.conversion.architecture import ModelDescription, build_model
from train.learning import learn
from train.loop.loop_settings import LoopSettings
from train.loop.progress import SilentProgress, StepReport
from train.loop.training_loop import TrainingResult, default_accelerator
from train.objectives.masked_lm import MaskedLm
from train.objectives.penalty import PenaltySettings
from train.validation import Validation, ValidationSettings

MASKING = Masking(mask_id=2, special_ids=(0, 1, 2), vocab_size=40)
SETTINGS = LoopSettings(
    steps=8, batch_size=4, learning_rate=5e-3, warmup_steps=2, evaluate_every=4, checkpoint_every=3, seed=1
)


def counting_tokens() -> np.ndarray:
    """Five of the forty tokens, counting round and round with a jump now and then."""
    generator = np.random.default_rng(0)
    return np.concatenate([3 + (start + np.arange(50)) % 5 for start in generator.integers(0, 5, size=80)]).astype(
        np.uint16
    )


def tiny_masked_lm(*, dropout: float = 0.1) -> PreTrainedModel:
    config = {
        "vocab_size": 40,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 16,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
    }
    description = ModelDescription(architecture="bert", config=config, head="masked-lm")
    return build_model(description, AttentionSettings(gate="linear", gate_init=0.25), seed=0)


class Stopping(SilentProgress):
    def __init__(self, at_step: Callable[[int], None] = lambda step: None) -> None:
        self.reports: list[StepReport] = []
        self.at_step = at_step

    def on_step(self, report: StepReport) -> None:
        self.reports.append(report)
        self.at_step(report.step)


def train_masked_lm(
    out_dir: Path,
    settings: LoopSettings = SETTINGS,
    *,
    dropout: float = 0.1,
    watcher: Stopping | None = None,
    penalty: PenaltySettings | None = None,
) -> tuple[PreTrainedModel, TrainingResult]:
    tokens = counting_tokens()
    model = tiny_masked_lm(dropout=dropout)
    task = MaskedLm(model)
    source = MaskedWindows(TokenWindows(tokens, length=16, batch_size=4, seed=1), MASKING, seed=1)
    held_out = MASKING.apply(spread_windows(tokens, length=16, count=16), np.random.default_rng(0))
    validation = Validation(task, [held_out], calibration=[source.batch(1000)], settings=ValidationSettings())
    result = learn(
        model,
        task,
        source,
        settings,
        out_dir=out_dir,
        validation=validation,
        progress=watcher,
        penalty=penalty,
        accelerator=default_accelerator(settings, cpu=True),
    )
    return model, result


def test_a_small_masked_lm_learns_and_its_integers_follow(tmp_path: Path) -> None:
    settings = replace(SETTINGS, steps=150, batch_size=4, evaluate_every=150, checkpoint_every=0)
    _, result = train_masked_lm(tmp_path, settings, dropout=0.0)
    figures = result.history[-1]
    assert figures["float_perplexity"] < 6, "an untrained model guesses among 40"
    assert figures["paper_perplexity"] == pytest.approx(figures["float_perplexity"], rel=0.05)
    assert figures["paper_perplexity"] != figures["float_perplexity"]
    assert figures["max_inf_norm"] >= figures["ffn_output.max_inf_norm"] > 0
    assert figures["average_kurtosis"] > 1


@pytest.mark.parametrize("killed_at", [2, 7])
def test_a_killed_masked_lm_run_with_dropout_resumes_bit_for_bit(tmp_path: Path, killed_at: int) -> None:
    whole, whole_result = train_masked_lm(tmp_path / "whole")

    def stop(step: int) -> None:
        if step == killed_at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_masked_lm(tmp_path / "parts", watcher=Stopping(stop))
    resumed, resumed_result = train_masked_lm(tmp_path / "parts")
    for (name, a), (_, b) in zip(whole.state_dict().items(), resumed.state_dict().items(), strict=True):
        assert torch.equal(a, b), name
    assert resumed_result.history == whole_result.history


def test_the_penalty_keeps_ffn_outputs_small(tmp_path: Path) -> None:
    settings = replace(SETTINGS, steps=60, evaluate_every=0, checkpoint_every=0)
    _, free = train_masked_lm(tmp_path / "free", settings)
    punished = replace(settings, penalty_weight=10.0)
    _, kept = train_masked_lm(tmp_path / "kept", punished, penalty=PenaltySettings(width=0.2))
    assert kept.history[-1]["ffn_output.max_inf_norm"] < 0.7 * free.history[-1]["ffn_output.max_inf_norm"]


def test_a_penalty_without_weight_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="penalty and penalty_weight belong together"):
        train_masked_lm(tmp_path, penalty=PenaltySettings())


@pytest.mark.slow
def test_two_processes_have_the_loss_curve_of_one_with_the_same_batch(tmp_path: Path) -> None:
    run_in_two_processes(
        tmp_path,
        "from tests.train import test_learning as t",
        "t.train_masked_lm(out / 'two', replace(t.SETTINGS, log_every=1, checkpoint_every=0), dropout=0.0)",
    )
    train_masked_lm(tmp_path / "one", replace(SETTINGS, checkpoint_every=0), dropout=0.0)
    curves = [
        [json.loads(line) for line in (tmp_path / name / "log.jsonl").read_text().splitlines()]
        for name in ("one", "two")
    ]
    for one, two in zip(*curves, strict=True):
        assert one["step"] == two["step"]
        key = "loss" if one["kind"] == "step" else "float_loss"
        assert two[key] == pytest.approx(one[key], abs=2e-5)
