"""Outlier metrics of a checkpoint on texts or images: what ``quietformer inspect`` and the outlier stages share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from deploy.data.encoding import TextEncoder
from deploy.data.image_data import LabelledImage
from deploy.data.image_preprocessing import read_image_encoder
from quietformer.graph_data.graph_text import USUAL_LENGTH
from quietformer.progress import Job
from train.batches.image_batches import LabelledPixels, sequential_image_batches
from train.batches.text_batches import sequential_batches
from train.checkpoints.checkpoint import load
from train.checkpoints.checkpoint_files import read_positions
from train.checkpoints.tokenizer_file import tokenizer_file
from train.observation.outlier_report import OutlierReport
from train.observation.outliers import measure_outliers


def measure_checkpoint(
    checkpoint: Path, texts: Sequence[str], *, length: int | None = None, batch_size: int = 16, job: Job
) -> OutlierReport:
    """Run a checkpoint over texts and measure its named tensors.

    Args:
        checkpoint: checkpoint folder.
        texts: at least one.
        length: texts are cut to so many tokens; by default 128, or the model's positions where they are fewer.
        batch_size: rows per batch; the figures do not depend on it.
        job: told of every batch.

    Raises:
        FileNotFoundError: checkpoint or tokenizer are missing.
        ValueError: the checkpoint cannot be read, or ``length`` is above its positions.
    """
    model = load(checkpoint, head="none")
    positions = read_positions(checkpoint) or model.config.max_position_embeddings
    length = min(USUAL_LENGTH, positions) if length is None else length
    if length > positions:
        raise ValueError(f"length {length} is above the {positions} positions of {checkpoint}")
    with tokenizer_file(checkpoint) as tokenizer:
        encoder = TextEncoder(tokenizer, max_length=length, pad_token_id=model.config.pad_token_id or 0)
    rows = encoder.encode(texts)
    batches = sequential_batches(rows, batch_size=batch_size, pad_id=encoder.pad_token_id)
    return measure_outliers(model, _told(batches, job))


def measure_checkpoint_on_images(
    checkpoint: Path, images: Sequence[LabelledImage], *, batch_size: int = 16, job: Job
) -> OutlierReport:
    """Run a vision checkpoint over images, prepared as its own files say, and measure its named tensors.

    Args:
        checkpoint: checkpoint folder.
        images: at least one.
        batch_size: images per batch; the figures do not depend on it.
        job: told of every batch.

    Raises:
        FileNotFoundError: checkpoint or preprocessing are missing.
        ValueError: the checkpoint or an image cannot be read.
    """
    model = load(checkpoint, head="none")
    encoder = read_image_encoder(checkpoint)
    pixels = LabelledPixels(
        pixels=encoder.pixels(images),
        labels=np.zeros(len(images), dtype=np.int64),
        mean=encoder.mean,
        std=encoder.std,
    )
    batches = [
        {"pixel_values": batch["pixel_values"]} for batch in sequential_image_batches(pixels, batch_size=batch_size)
    ]
    return measure_outliers(model, _told(batches, job))


def _told(batches: Sequence[Mapping[str, Any]], job: Job) -> Iterator[Mapping[str, Any]]:
    for done, batch in enumerate(batches):
        job.advance(done, len(batches))
        yield batch
