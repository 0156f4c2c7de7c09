"""Retrofit of a small encoder with planted outliers, its arms, its resume, and what it refuses."""

import copy
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from tests.train.decoders import tiny_llama
from tests.train.encoders import tiny_encoder, tiny_masked_lm
from tests.train.vision import tiny_vision
from train.attention.settings import AttentionSettings
from train.batches.image_batches import LabelledPixels
from train.batches.text_batches import TokenRow
from train.conversion.convert import convert
from train.families.known_families import layers_of
from train.loop.progress import SilentProgress, StepReport
from train.loop.training_loop import default_accelerator
from train.retrofitting.retrofit import RetrofitResult, retrofit
from train.retrofitting.retrofit_data import image_data, text_data
from train.retrofitting.retrofit_preparation import finish, prepare
from train.retrofitting.retrofit_settings import RetrofitSettings

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
        text_data(teacher, _rows(64, seed=0), settings, evaluation_rows=_rows(24, seed=1)),
        settings,
        out_dir,
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
    data = text_data(teacher, _rows(16, seed=0), settings, evaluation_rows=_rows(4, seed=1))
    retrofit(teacher, student, data, settings, tmp_path)
    after = student.state_dict()
    assert torch.equal(
        after["cls.predictions.transform.dense.weight"], before["cls.predictions.transform.dense.weight"]
    )


def test_a_decoder_is_prepared_distilled_on_its_logits_and_rounded(tmp_path: Path) -> None:
    settings = replace(
        SETTINGS, steps=4, warmup_steps=0, learning_rate=1e-4, objective="logits", penalty_weight=0.0, penalty_ramp_steps=0,
        evaluation_profile="tensorrt", quantization_aware_steps=2, activation_bits=8, evaluate_every=2,
        prefix="search", rotate=True, equalize=True, round_weights=True,
    )  # fmt: skip
    teacher = tiny_llama()
    student = copy.deepcopy(teacher)
    convert(student, AttentionSettings())
    data = text_data(teacher, _rows(64, seed=0), settings, evaluation_rows=_rows(6, seed=1))
    told: list[str] = []
    chosen = prepare(student, settings, data.preparation, encode=lambda text: [len(text) + 5], tell=told.append)
    assert chosen["prefix"] in ([6], [7])
    result = retrofit(
        teacher, student, data, settings, tmp_path, accelerator=default_accelerator(settings.loop_settings(), cpu=True)
    )
    assert [entry["step"] for entry in result.history] == [0, 2, 4]
    assert {"quantized_divergence", "float_agreement"} <= result.history[0].keys()
    assert result.best_score == pytest.approx(max(-entry["quantized_divergence"] for entry in result.history))
    finish(student, settings, data.preparation, tell=told.append)
    assert told == [
        "storing a prefix",
        "rotating the residual stream",
        "moving scales between tensors",
        "rounding weights",
    ]
    weight = layers_of(student)[0].ffn_out.weight.detach()
    steps = weight / (weight.abs().max() / 127)
    assert (steps - steps.round()).abs().max() < 1e-3


def test_a_retrofit_of_no_steps_only_measures(tmp_path: Path) -> None:
    settings = replace(SETTINGS, steps=0, warmup_steps=0, penalty_weight=0.0, penalty_ramp_steps=0)
    student, result = _run(tmp_path, settings, attention=AttentionSettings())
    assert [entry["step"] for entry in result.history] == [0]
    assert (result.steps, result.best_step) == (0, 0)
    for (name, tensor), (_, before) in zip(
        student.base_model.state_dict().items(), _teacher().base_model.state_dict().items(), strict=True
    ):
        assert torch.equal(tensor, before), name


@pytest.mark.parametrize("objective", ["hidden", "logits"])
def test_a_vision_transformer_is_distilled_without_its_labels(
    tmp_path: Path, objective: Literal["hidden", "logits"]
) -> None:
    settings = replace(SETTINGS, steps=3, warmup_steps=1, objective=objective, evaluate_every=0)
    teacher = tiny_vision("vit")
    student = copy.deepcopy(teacher)
    convert(student, GATED)
    pixels = np.random.default_rng(0).integers(0, 256, size=(24, 12, 8, 3), dtype=np.uint8)
    images = [
        LabelledPixels(pixels=part, labels=np.zeros(len(part), dtype=np.int64), mean=(0.5,) * 3, std=(0.5,) * 3)
        for part in (pixels[:16], pixels[16:])
    ]
    data = image_data(images[0], settings, evaluation=images[1])
    result = retrofit(teacher, student, data, settings, tmp_path)
    assert [entry["step"] for entry in result.history] == [0, 3]
    assert math.isfinite(result.best_score)
    with pytest.raises(ValueError, match="evaluation images; expected at least 3"):
        image_data(
            images[0], settings, evaluation=replace(images[1], pixels=pixels[:2], labels=np.zeros(2, dtype=np.int64))
        )


def test_a_bare_model_has_no_logits_to_distil(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs a model with a head; this is a bare BertModel"):
        _run(tmp_path, replace(SETTINGS, objective="logits"))


def test_unusable_input_is_refused() -> None:
    teacher = _teacher()

    def run(rows: list[TokenRow], evaluation: list[TokenRow], settings: RetrofitSettings = SETTINGS) -> None:
        text_data(teacher, rows, settings, evaluation_rows=evaluation)

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
        ({"steps": -1}, "steps is -1"),
        ({"objective": "labels"}, "unknown objective 'labels'"),
        ({"rotate": True}, "rotate .* needs objective = 'logits'"),
        ({"preparation_rows": 0}, "preparation_rows is 0"),
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
    settings = replace(SETTINGS, prefix=(3, 4))
    assert RetrofitSettings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings
    with pytest.raises(ValueError, match="unknown retrofit setting 'step'"):
        RetrofitSettings.from_dict({"step": 3})
