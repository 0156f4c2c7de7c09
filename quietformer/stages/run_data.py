"""What a run reads, texts of its own directory or images outside of it, for stages that need not tell them apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deploy.data.image_data import image_data_identity
from deploy.data.image_preprocessing import PREPROCESSOR_FILE
from deploy.data.text_data import data_identity
from quietformer.graph_data.calibration import CalibrationPlan
from quietformer.manifest import hash_source
from quietformer.recipe.recipe import Recipe
from quietformer.stages.layout import HELD_OUT_TEXTS, TRAIN_TEXTS, Variant, in_variant, tokenizer
from quietformer.stages.stage import Run


def reads_images(recipe: Recipe) -> bool:
    """Whether the run's model reads images."""
    return recipe.data.images is not None


def learning_data(run: Run) -> Path | str:
    """What is learnt from and calibrated on: a file of texts, or the images with their splits."""
    return run.recipe.data.images or run.path(TRAIN_TEXTS)


def learning_identity(run: Run) -> dict[str, Any]:
    """What a calibration cache says of :func:`learning_data`."""
    data = learning_data(run)
    return image_data_identity(data, labelled=False) if reads_images(run.recipe) else data_identity(data)


def held_out_data(run: Run) -> Path | str:
    """What nothing was learnt from: a file of texts, or the images, whose evaluation split is taken."""
    return run.recipe.data.images or run.path(HELD_OUT_TEXTS)


def learning_inputs(recipe: Recipe) -> Sequence[str]:
    """The part of the run directory behind :func:`learning_data`."""
    return () if reads_images(recipe) else (TRAIN_TEXTS,)


def held_out_inputs(recipe: Recipe) -> Sequence[str]:
    """The part of the run directory behind :func:`held_out_data`."""
    return () if reads_images(recipe) else (HELD_OUT_TEXTS,)


def companions(recipe: Recipe, variant: Variant) -> Sequence[str]:
    """Files that belong beside a graph: the tokenizer, or how images are prepared."""
    return (in_variant(variant, PREPROCESSOR_FILE) if reads_images(recipe) else tokenizer(variant),)


def calibration_plan(recipe: Recipe) -> CalibrationPlan:
    """How much is calibrated on, and how; images have no length."""
    settings = recipe.calibrate
    return CalibrationPlan(
        method=settings.method,
        methods=settings.methods,
        batches=settings.batches,
        batch_size=settings.batch_size,
        length=None if reads_images(recipe) else settings.length,
    )


def images_source(recipe: Recipe) -> dict[str, str]:
    """sha256 of the recipe's images, under the name ``images``; empty where it has none.

    Raises:
        FileNotFoundError: no such file or folder.
    """
    if recipe.data.images is None:
        return {}
    path = Path(recipe.data.images)
    if not path.exists():
        raise FileNotFoundError(f"no images at {path} (data.images)")
    return {"images": hash_source(path)}
