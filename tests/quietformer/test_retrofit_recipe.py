"""``[retrofit]`` recipes of decoders and of image models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deploy.data.image_encoding import ImageEncoder
from quietformer.pipeline import run_stages
from quietformer.recipe.recipe import load_recipe
from quietformer.stages.stage import Stage
from quietformer.whole_run import all_stages
from tests.export.tiny_checkpoints import write_checkpoint
from tests.export.tiny_decoders import tiny_decoder
from tests.export.vision_checkpoints import small_vit, write_vision
from tests.quietformer.test_image_commands import write_images
from tests.quietformer.tiny_run import random_sentences
from train.attention.settings import AttentionSettings
from train.checkpoints.checkpoint import load
from train.conversion.convert import settings_of

RETROFIT = """
name = "tiny"

[model]
checkpoint = {checkpoint}

[data]
{data}
validation = 4
{held_out}

[retrofit]
{retrofit}
batch_size = 4
max_length = 16
evaluation_profile = "tensorrt"
calibration_rows = 8

[calibrate]
batches = 2
batch_size = 4
length = 16
seeds = [0]

[quantize]
profiles = ["tensorrt"]

{compare}
"""
LLAMA = """
prefix = [7, 9]
rotate = true
equalize = true
round_weights = true
objective = "logits"
steps = 0
warmup_steps = 0
penalty_weight = 0.0
penalty_ramp_steps = 0
"""
OPT = """
objective = "logits"
steps = 3
learning_rate = 1e-4
warmup_steps = 1
penalty_ramp_steps = 1
quantization_aware_steps = 1
"""
VIT = """
steps = 3
warmup_steps = 1
penalty_ramp_steps = 1
"""


def _run_to(stage_name: str, recipe_file: Path, out: Path) -> None:
    """The stages up to one of them."""
    recipe = load_recipe(recipe_file)
    stages: tuple[Stage, ...] = all_stages(recipe)
    names = [stage.name for stage in stages]
    run_stages(recipe, out, stages[: names.index(stage_name) + 1])


def _decoder_recipe(folder: Path, family: str, retrofit: str) -> Path:
    checkpoint = write_checkpoint(tiny_decoder(family), folder / "tiny")
    texts = folder / "texts.txt"
    texts.write_text("\n".join(random_sentences(80)) + "\n", encoding="utf-8")
    recipe = folder / "tiny.toml"
    recipe.write_text(
        RETROFIT.format(
            checkpoint=json.dumps(str(checkpoint)),
            data=f"texts = {json.dumps(str(texts))}",
            held_out="held_out = 20",
            retrofit=retrofit,
            compare=f"[compare.clm]\ndata = {json.dumps(str(texts))}\nwindow = 16\nlimit = 4",
        ),
        encoding="utf-8",
    )
    return recipe


@pytest.mark.slow
def test_a_decoder_gets_prefix_rotation_scales_and_rounding_and_runs_in_integers(tmp_path: Path) -> None:
    _run_to("compare", _decoder_recipe(tmp_path, "llama", LLAMA), tmp_path / "run")
    out = tmp_path / "run"
    model = load(out / "checkpoint")
    settings = settings_of(model)
    assert settings is not None
    assert settings.prefix == 2
    assert not model.config.tie_word_embeddings
    result = json.loads((out / "retrofit.json").read_text(encoding="utf-8"))
    assert result["prepared"]["prefix"] == [7, 9]
    assert set(result["prepared"]) == {"prefix", "rotate", "equalize", "round_weights"}
    comparison = json.loads((out / "comparison.json").read_text(encoding="utf-8"))["clm"]
    rows = {(row["arm"], row["profile"], row["backend"]) for row in comparison["rows"]}
    assert rows >= {
        (arm, "tensorrt", backend) for arm in ("original", "retrofitted") for backend in ("openvino", "onnxruntime")
    }
    assert json.loads((out / "lint.json").read_text(encoding="utf-8")) == {"tensorrt": []}


def test_an_opt_is_distilled_on_its_logits(tmp_path: Path) -> None:
    _run_to("outliers", _decoder_recipe(tmp_path, "opt", OPT), tmp_path / "run")
    result = json.loads((tmp_path / "run" / "retrofit.json").read_text(encoding="utf-8"))
    assert [entry["step"] for entry in result["history"]] == [0, 3]
    assert result["history"][0]["float_divergence"] == pytest.approx(0, abs=1e-5)
    assert result["prepared"] == {}


def test_a_vision_transformer_is_retrofitted_on_unlabelled_images(tmp_path: Path) -> None:
    model = small_vit(AttentionSettings())
    del model.config.quietformer
    encoder = ImageEncoder(size=(32, 32), mean=(0.5,) * 3, std=(0.5,) * 3)
    checkpoint = write_vision(model, tmp_path / "vit", encoder)
    images = write_images(tmp_path / "images", {"train": 40, "test": 10})
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(
        RETROFIT.format(
            checkpoint=json.dumps(str(checkpoint)),
            data=f"images = {json.dumps(str(images))}",
            held_out="",
            retrofit=VIT,
            compare="[compare.image]",
        ).replace("\n[data]", '\n[attention]\ngate = "linear"\ngate_scale = 2.0\n\n[data]'),
        encoding="utf-8",
    )
    _run_to("outliers", recipe, tmp_path / "run")
    result = json.loads((tmp_path / "run" / "retrofit.json").read_text(encoding="utf-8"))
    assert result["steps"] == 3
    assert result["history"][0]["float_relative_error"] < 1e-5
    before, after = (
        json.loads((tmp_path / "run" / name).read_text(encoding="utf-8"))
        for name in ("original/outliers.json", "outliers.json")
    )
    assert before["num_sequences"] == after["num_sequences"] == 10
    assert load(tmp_path / "run" / "checkpoint").config.quietformer["gate"] == "linear"
