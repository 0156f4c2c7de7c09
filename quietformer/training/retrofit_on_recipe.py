"""What a retrofit reads, made of a run directory's texts or of the recipe's images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from deploy.data.encoding import TextEncoder
from deploy.data.example_draw import draw
from deploy.data.image_data import LabelledImage, read_images
from deploy.data.image_encoding import ImageEncoder
from deploy.data.image_preprocessing import read_image_encoder
from deploy.data.text_data import read_texts
from quietformer.progress import Job
from quietformer.recipe.original_checkpoint import original_folder
from quietformer.recipe.recipe import Recipe
from train.batches.image_batches import LabelledPixels
from train.checkpoints.tokenizer_file import tokenizer_file
from train.retrofitting.retrofit_data import RetrofitData, image_data, text_data
from train.retrofitting.retrofit_settings import RetrofitSettings


def retrofit_data(
    recipe: Recipe,
    teacher: Any,
    settings: RetrofitSettings,
    *,
    train_texts: Path,
    validation_texts: Path,
    job: Job,
) -> RetrofitData:
    """Batches to learn from, to look at and to choose by.

    Args:
        recipe: with ``[retrofit]``.
        teacher: the original.
        settings: of the retrofit.
        train_texts: to learn from, where the model reads texts.
        validation_texts: to choose by, likewise. Of images, some of the training images are kept apart for it.
        job: told what is being done.

    Raises:
        FileNotFoundError: texts, images or how images are prepared are missing.
        ValueError: too few of them, or they cannot be read.
    """
    original = original_folder(recipe)
    if recipe.data.images is not None:
        return _of_images(recipe, read_image_encoder(original), settings, job=job)
    with tokenizer_file(original) as tokenizer:
        pad_id = teacher.config.pad_token_id or 0
        encoder = TextEncoder(tokenizer, max_length=settings.max_length, pad_token_id=pad_id)
    rows = encoder.encode(_texts_to_learn_from(train_texts, settings))
    return text_data(teacher, rows, settings, evaluation_rows=encoder.encode(read_texts(validation_texts)))


def token_ids_of(checkpoint: Path, text: str) -> list[int]:
    """A text's ids, without special tokens."""
    with tokenizer_file(checkpoint) as file:
        ids: list[int] = Tokenizer.from_file(str(file)).encode(text, add_special_tokens=False).ids
    return ids


def _of_images(recipe: Recipe, encoder: ImageEncoder, settings: RetrofitSettings, *, job: Job) -> RetrofitData:
    assert recipe.data.images is not None
    job.tell("decoding images")
    images = read_images(recipe.data.images, purpose="training", labelled=False, limit=recipe.data.limit)
    kept_apart = recipe.data.validation
    if len(images) < kept_apart + settings.batch_size:
        raise ValueError(
            f"{recipe.data.images} holds {len(images)} training images; data.validation and retrofit.batch_size "
            f"alone take {kept_apart + settings.batch_size}"
        )
    judged = draw(images, limit=kept_apart)
    apart = set(judged.indices)
    learnt = [image for index, image in enumerate(images) if index not in apart]
    return image_data(_pixels(learnt, encoder), settings, evaluation=_pixels(judged.examples, encoder))


def _pixels(images: list[LabelledImage], encoder: ImageEncoder) -> LabelledPixels:
    labels = np.zeros(len(images), dtype=np.int64)
    return LabelledPixels(pixels=encoder.pixels(images), labels=labels, mean=encoder.mean, std=encoder.std)


def _texts_to_learn_from(file: Path, settings: RetrofitSettings) -> list[str]:
    """All texts, or as many of them, chosen by the seed, as the run can read."""
    texts = read_texts(file)
    needed = max(settings.steps * settings.batch_size, settings.preparation_rows, settings.calibration_rows)
    if len(texts) <= needed:
        return texts
    chosen = np.random.default_rng(settings.seed).choice(len(texts), size=needed, replace=False)
    return [texts[index] for index in chosen]
