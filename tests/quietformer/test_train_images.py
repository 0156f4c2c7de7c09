"""A ``[train]`` recipe on images: folders of classes to a checkpoint that says how its images are prepared."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from deploy.data.image_preprocessing import read_image_encoder
from quietformer.pipeline import run_stages
from quietformer.recipe.recipe import load_recipe
from quietformer.whole_run import learning_stages
from train.checkpoints.checkpoint import load

RECIPE = """
name = "tiny-vit"

[model]
architecture = "vit"
[model.config]
image_size = 8
patch_size = 4
hidden_size = 32
num_hidden_layers = 2
num_attention_heads = 2
intermediate_size = 64

[attention]
gate = "linear"
patch_norm = true

[data]
images = {images}

[train]
objective = "image_classification"
steps = 6
batch_size = 4
learning_rate = 1e-3
label_smoothing = 0.1
mixup = 0.8
cutmix = 1.0
crop_padding = 1
flip = true
evaluate_every = 3
validation_batches = 2
calibration_batches = 1
checkpoint_every = 2
log_every = 1
"""


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pillow = pytest.importorskip("PIL.Image")
    folder = tmp_path_factory.mktemp("images")
    generator = np.random.default_rng(0)
    for split, count in (("train", 10), ("test", 4)):
        for name in ("dark", "light", "loud"):
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = generator.integers(0, 256, size=(8, 8, 3), dtype=np.uint8)
                pillow.fromarray(pixels).save(folder / split / name / f"{number}.png")
    path = folder / "tiny-vit.toml"
    path.write_text(RECIPE.format(images=json.dumps(str(folder))), encoding="utf-8")
    return path


def test_a_vision_transformer_is_trained_and_measured(recipe_file: Path, tmp_path: Path) -> None:
    recipe = load_recipe(recipe_file)
    run_stages(recipe, tmp_path, learning_stages(recipe))
    model = load(tmp_path / "checkpoint")
    assert model.config.num_labels == 3
    assert read_image_encoder(tmp_path / "checkpoint").size == (8, 8)
    (result,) = json.loads((tmp_path / "train.json").read_text(encoding="utf-8"))
    last = result["history"][-1]
    assert {"float_top1", "paper_top1", "tensorrt_top1", "max_inf_norm", "average_kurtosis"} <= last.keys()
    outliers = json.loads((tmp_path / "outliers.json").read_text(encoding="utf-8"))
    assert outliers["num_sequences"] == 12, "four images of three classes in the evaluation split"
    assert not (tmp_path / "data").exists()


def test_killed_training_on_augmented_images_resumes_bit_for_bit(recipe_file: Path, tmp_path: Path) -> None:
    from quietformer.training import training_job
    from train.loop.progress import StepReport

    recipe = load_recipe(recipe_file)
    stages = learning_stages(recipe)[:2]
    run_stages(recipe, tmp_path / "whole", stages)
    real = training_job.TrainingJob.on_step

    def stop(self: training_job.TrainingJob, report: StepReport) -> None:
        if report.step == 5:
            raise KeyboardInterrupt
        real(self, report)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_job.TrainingJob, "on_step", stop)
        with pytest.raises(KeyboardInterrupt):
            run_stages(recipe, tmp_path / "parts", stages)
    run_stages(recipe, tmp_path / "parts", stages)
    whole, parts = (load(tmp_path / name / "checkpoint").state_dict() for name in ("whole", "parts"))
    for name, tensor in whole.items():
        assert tensor.equal(parts[name]), name


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.objective=masked_lm", "has no effect with objective = 'masked_lm'|belong together"),
        ("model.tokenizer=bpe:400", "reads no text, so it takes no tokenizer"),
        ("train.length=64", "length has no effect with objective = 'image_classification'"),
    ],
)
def test_a_recipe_of_images_that_makes_no_sense_is_refused(recipe_file: Path, override: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_recipe(recipe_file, [override])


def test_missing_images_and_too_few_classes_are_refused(recipe_file: Path, tmp_path: Path) -> None:
    absent = load_recipe(recipe_file, ["data.images=nowhere"])
    with pytest.raises(FileNotFoundError, match="no images at nowhere"):
        run_stages(absent, tmp_path / "absent", learning_stages(absent))
    narrow = load_recipe(recipe_file, ["model.config.num_labels=2"])
    with pytest.raises(ValueError, match="num_labels is 2; the images have 3 classes"):
        run_stages(narrow, tmp_path / "narrow", learning_stages(narrow))
