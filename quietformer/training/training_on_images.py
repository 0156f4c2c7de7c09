"""Training on images: decoded once, kept as pixels, augmented as a function of seed and step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from deploy.data.example_draw import draw
from deploy.data.image_data import LabelledImage, each_image, read_images
from deploy.data.image_encoding import ImageEncoder
from deploy.data.image_preprocessing import PREPROCESSOR_FILE, preprocessor_file
from deploy.files import write_atomically
from quietformer.progress import Job
from quietformer.recipe.recipe import Recipe
from quietformer.training.training_setup import TrainingSetup, describe, whole_number
from train.batches.image_batches import ImageBatches, LabelledPixels, sequential_image_batches
from train.conversion.architecture import build_model
from train.loop.optimizer_update import BatchSource
from train.objectives.classification import Classification
from train.objectives.image_mixing import MixedImages
from train.objectives.learning_task import LearningTask

_USUAL_SIZE = 224
_MEAN = _STD = (0.5, 0.5, 0.5)
"""Pixels become -1 to 1, as transformers' ViT takes them."""


def image_setup(recipe: Recipe, folder: Path, *, job: Job | None = None) -> TrainingSetup:
    """Set the training of an image classifier up.

    Args:
        recipe: with ``[train]``, a model from scratch and ``data.images``.
        folder: gets ``companions/preprocessor_config.json``.
        job: told what is being done.

    Raises:
        FileNotFoundError: no such images.
        ValueError: images that cannot be read, too few of them, or more classes than ``num_labels``.
        ImportError: Pillow or pyarrow is missing.
    """
    settings = recipe.train
    assert settings is not None
    config = recipe.model.config
    size = whole_number(config, "image_size", "img_size") or _USUAL_SIZE
    encoder = ImageEncoder(size=(size, size), mean=_MEAN, std=_STD)
    companions = folder / "companions"
    companions.mkdir(parents=True, exist_ok=True)
    write_atomically(companions / PREPROCESSOR_FILE, preprocessor_file(encoder))
    count = settings.validation_batches * settings.batch_size
    if job is not None:
        job.tell("decoding images")
    assert recipe.data.images is not None
    train = _pixels(encoder, read_images(recipe.data.images, purpose="training", limit=recipe.data.limit))
    held_out = _pixels(encoder, draw(each_image(recipe.data.images, purpose="evaluation"), limit=count).examples)
    num_classes = int(train.labels.max()) + 1
    config = {"num_labels": num_classes, **config}
    if (whole_number(config, "num_labels") or 0) < num_classes:
        raise ValueError(f"model.config.num_labels is {config['num_labels']}; the images have {num_classes} classes")

    def batches(seed: int) -> BatchSource:
        source = ImageBatches(
            train,
            batch_size=settings.batch_size,
            seed=seed,
            crop_padding=settings.crop_padding,
            flip=settings.flip,
        )
        if not (settings.mixup or settings.cutmix):
            return source
        return MixedImages(source, seed=seed, mixup=settings.mixup, cutmix=settings.cutmix)

    def task(_model: Any) -> LearningTask:
        return Classification(label_smoothing=settings.label_smoothing)

    return TrainingSetup(
        build=partial(build_model, describe(recipe, config), recipe.attention.settings()),
        task=task,
        batches=batches,
        validation_batches=sequential_image_batches(held_out, batch_size=settings.batch_size),
        companions=companions,
    )


def _pixels(encoder: ImageEncoder, images: Sequence[LabelledImage]) -> LabelledPixels:
    return LabelledPixels(
        pixels=encoder.pixels(images),
        labels=np.array([image.label for image in images], dtype=np.int64),
        mean=encoder.mean,
        std=encoder.std,
    )
