"""What a retrofit reads: batches to learn from, batches that calibrate its simulated integer models, batches it is judged by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from train.batches.image_batches import ImageBatches, LabelledPixels, sequential_image_batches
from train.batches.text_batches import Batch, TextBatches, TokenRow, check_rows, rows_sha256, sequential_batches
from train.checkpoints.checkpoint_files import positions_of
from train.loop.optimizer_update import BatchSource
from train.retrofitting.retrofit_settings import RetrofitSettings

_EVALUATION_BATCH = {"hidden": 32, "logits": 2}
"""Logits over a vocabulary take a hundred times the memory of hidden states."""
_FEWEST_EVALUATION_ROWS = 3  # two similarities at least, or nothing correlates


@dataclass(frozen=True, kw_only=True, slots=True)
class RetrofitData:
    """Keyword inputs of forward passes; of images without labels."""

    batches: BatchSource
    calibration: Sequence[Batch]
    preparation: Sequence[Batch]
    """What :mod:`train.retrofitting.retrofit_preparation` looks at."""
    evaluation: Sequence[Batch]
    evaluation_sha256: str


def text_data(
    model: PreTrainedModel,
    token_rows: Sequence[TokenRow],
    settings: RetrofitSettings,
    *,
    evaluation_rows: Sequence[TokenRow],
) -> RetrofitData:
    """Rows of tokens as batches.

    Args:
        model: teacher or student, for positions and padding.
        token_rows: training texts as 1-D arrays of ids, special tokens included, each at most ``max_length`` long.
        settings: of the retrofit.
        evaluation_rows: held-out texts in the same form, at least 3; 64 to 128 are enough.

    Raises:
        ValueError: rows are unusable, too few, or longer than the model's positions.
    """
    positions = positions_of(model.config.to_dict())
    if positions is not None and settings.max_length > positions:
        raise ValueError(f"max_length is {settings.max_length}; the model has {positions} positions")
    check_rows(token_rows, max_length=settings.max_length)
    check_rows(evaluation_rows, max_length=settings.max_length, what="evaluation")
    _check_evaluation(len(evaluation_rows), what="rows")
    pad_id = model.config.pad_token_id or 0

    def sample(count: int) -> list[TokenRow]:
        return [token_rows[index] for index in _chosen(len(token_rows), count, seed=settings.seed)]

    def batches(rows: Sequence[TokenRow], batch_size: int = settings.batch_size) -> list[Batch]:
        return sequential_batches(rows, batch_size=batch_size, pad_id=pad_id)

    return RetrofitData(
        batches=TextBatches(token_rows, batch_size=settings.batch_size, pad_id=pad_id, seed=settings.seed),
        calibration=batches(sample(settings.calibration_rows)),
        preparation=batches(sorted(sample(settings.preparation_rows), key=len)),
        evaluation=batches(sorted(evaluation_rows, key=len), _EVALUATION_BATCH[settings.objective]),
        evaluation_sha256=rows_sha256(evaluation_rows),
    )


def image_data(images: LabelledPixels, settings: RetrofitSettings, *, evaluation: LabelledPixels) -> RetrofitData:
    """Images as batches; their classes are not looked at.

    Args:
        images: training images.
        settings: of the retrofit.
        evaluation: held-out images, at least 3; 64 to 128 are enough.

    Raises:
        ValueError: too few images.
    """
    _check_evaluation(len(evaluation), what="images")

    def sample(count: int) -> list[Batch]:
        indices_N = _chosen(len(images), count, seed=settings.seed)
        starts = range(0, len(indices_N), settings.batch_size)
        return [_unlabelled(images.batch(indices_N[start : start + settings.batch_size])) for start in starts]

    return RetrofitData(
        batches=_WithoutLabels(ImageBatches(images, batch_size=settings.batch_size, seed=settings.seed)),
        calibration=sample(settings.calibration_rows),
        preparation=sample(settings.preparation_rows),
        evaluation=[_unlabelled(batch) for batch in sequential_image_batches(evaluation, batch_size=32)],
        evaluation_sha256=evaluation.sha256(),
    )


class _WithoutLabels:
    """Batches of images as a model takes them that is not asked for a loss."""

    def __init__(self, source: ImageBatches) -> None:
        self._source = source

    def batch(self, step: int, *, part: int = 0, num_parts: int = 1) -> Batch:
        return _unlabelled(self._source.batch(step, part=part, num_parts=num_parts))

    def identity(self) -> dict[str, Any]:
        return self._source.identity()


def _unlabelled(batch: Batch) -> Batch:
    return {"pixel_values": batch["pixel_values"]}


def _check_evaluation(count: int, *, what: str) -> None:
    if count < _FEWEST_EVALUATION_ROWS:
        raise ValueError(f"{count} evaluation {what}; expected at least {_FEWEST_EVALUATION_ROWS}")


def _chosen(available: int, count: int, *, seed: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.random.default_rng(seed).choice(available, size=min(count, available), replace=False)
