"""A whole run on images: a tiny ViT from scratch through export, integers, engine, accuracy and latency to the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deploy.graphs.graph_info import read_info
from quietformer.recipe.recipe import load_recipe
from tests.quietformer.test_commands import succeed
from tests.quietformer.test_image_commands import write_images

RECIPE = """
name = "tiny-vit"

[model]
architecture = "vit"

[model.config]
image_size = 16
patch_size = 4
hidden_size = 32
num_hidden_layers = 2
num_attention_heads = 2
intermediate_size = 64

[attention]
gate = "linear"

[data]
images = {images}

[train]
objective = "image_classification"
steps = 6
batch_size = 8
learning_rate = 1e-3
validation_batches = 2

[calibrate]
batches = 2
batch_size = 8
seeds = [0, 1]

[engine]
compute_capabilities = ["8.9"]

[compare.image]

[bench]
seconds = 0.02
"""


def test_recipes_of_images_have_batches_as_shapes_and_tasks_of_images_alone(tmp_path: Path) -> None:
    path = tmp_path / "tiny.toml"
    path.write_text(RECIPE.format(images='"images"'), encoding="utf-8")
    recipe = load_recipe(path)
    assert recipe.engine is not None
    assert (recipe.engine.min_shape, recipe.engine.max_shape) == ("1", "8")
    path.write_text(recipe.to_toml(), encoding="utf-8")
    assert load_recipe(path) == recipe
    for override, message in {
        "bench.shapes=['1x128']": r"bench\.shapes has 1x128; images take the batch alone",
        "export.length=64": "a model that reads images has no length",
    }.items():
        with pytest.raises(ValueError, match=message):
            load_recipe(path, [override])


@pytest.mark.slow
def test_a_vit_goes_through_every_stage(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx")
    images, recipe, out = tmp_path / "images", tmp_path / "tiny.toml", tmp_path / "run"
    write_images(images, {"train": 60, "test": 20})
    recipe.write_text(RECIPE.format(images=json.dumps(str(images))), encoding="utf-8")
    told = succeed("run", recipe, "--out", out)
    assert "report:" in told.stdout
    info = read_info(out / "model.int8.onnx")
    assert (info.reads, info.task, info.profile) == ("pixels", "image-classification", "tensorrt")
    comparison = json.loads((out / "comparison.json").read_text())["image"]
    assert comparison["num_examples"] == 20
    rows = {(row["profile"], row["backend"]): row for row in comparison["rows"]}
    assert {("tensorrt", "openvino"), ("paper", "onnxruntime"), ("paper", "pytorch"), ("ort", "onnxruntime")} <= set(
        rows
    )
    assert len(rows["tensorrt", "openvino"]["scores"]) == 2
    (latency,) = json.loads((out / "latency.json").read_text())
    assert (latency["batch_size"], latency["length"]) == (1, None)
    assert json.loads((out / "lint.json").read_text()) == {"tensorrt": [], "paper": [], "ort": []}
    assert json.loads((out / "engine" / "engine.json").read_text())["profile"]["pixel_values"]["max"] == [8, 3, 16, 16]
    again = succeed("run", recipe, "--out", out)
    assert "bench: unchanged" in again.stderr + again.stdout
