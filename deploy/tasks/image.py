"""Image classification: the share of images whose class gets the largest logit.

Images stay encoded and are decoded batch by batch for every candidate, so memory holds one batch of pixels whatever the
number and size of the images.

Shapes: N images, B batch, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.special import logsumexp

from deploy.data.image_data import LabelledImage
from deploy.tasks.task import Feeds, Infer, TaskResult

LOGITS = "logits"
"""Name of the output that a classification graph has."""
_TOP = 5


class PixelEncoder(Protocol):
    """What the task needs of a preprocessing; :class:`deploy.data.image_encoding.ImageEncoder` is one."""

    def feeds(self, images: Sequence[LabelledImage], /) -> Feeds:
        """``pixel_values``, float32 (B, C, H, W)."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ImageTask:
    """Top-1 accuracy."""

    images: tuple[LabelledImage, ...]
    encoder: PixelEncoder
    batch_size: int = 32
    name: str = "image"
    metric: str = "top-1 accuracy"
    higher_is_better: bool = True

    @property
    def num_examples(self) -> int:
        """Number of images."""
        return len(self.images)

    def evaluate(self, infer: Infer) -> TaskResult:
        """Accuracy of a model; ``loss`` (mean cross-entropy, nats) and, beyond five classes, ``top5`` as details.

        Raises:
            ValueError: the graph has no logits, they are not finite, or an image has a class that they do not have.
        """
        first = within_five = 0
        loss = 0.0
        num_classes = 0
        for start in range(0, len(self.images), self.batch_size):
            images = self.images[start : start + self.batch_size]
            outputs = infer(self.encoder.feeds(images))
            if LOGITS not in outputs:
                raise ValueError(f"the graph has no output '{LOGITS}'; it has {', '.join(sorted(outputs))}")
            logits_BK = outputs[LOGITS].astype(np.float64)
            num_classes = logits_BK.shape[1]
            labels_B = np.array([_label(image, num_classes) for image in images])
            if not np.isfinite(logits_BK).all():
                bad = int(np.flatnonzero(~np.isfinite(logits_BK).all(axis=1))[0])
                raise ValueError(f"logits of {images[bad].where} are not finite")
            picked_B = logits_BK[np.arange(len(images)), labels_B]
            loss += float((logsumexp(logits_BK, axis=1) - picked_B).sum())
            # Classes that come before the right one: those with a larger logit, of equal ones those of lower number.
            before_BK = (logits_BK > picked_B[:, None]) | (
                (logits_BK == picked_B[:, None]) & (np.arange(num_classes) < labels_B[:, None])
            )
            ranks_B = before_BK.sum(axis=1)
            first += int(np.count_nonzero(ranks_B == 0))
            within_five += int(np.count_nonzero(ranks_B < _TOP))
        details = {"loss": loss / len(self.images)}
        if num_classes > _TOP:
            details["top5"] = within_five / len(self.images)
        return TaskResult(score=first / len(self.images), details=details)


def image_task(
    images: Sequence[LabelledImage], encoder: PixelEncoder, *, labels: Sequence[str] = (), batch_size: int = 32
) -> ImageTask:
    """Images with labels, as :func:`deploy.data.image_data.read_images` gives them.

    Args:
        images: to classify.
        encoder: of the graph; every candidate shares it.
        labels: names of the model's classes, where they are known.
        batch_size: images per batch; the last one may hold fewer.

    Raises:
        ValueError: no image, one without a label, or one of a class that the model does not have.
    """
    if not images:
        raise ValueError("no images to classify")
    for image in images:
        _label(image, len(labels) or None)
    return ImageTask(images=tuple(images), encoder=encoder, batch_size=batch_size)


def _label(image: LabelledImage, num_classes: int | None) -> int:
    if image.label is None:
        raise ValueError(f"{image.where} has no label; the task 'image' needs the class of every image")
    if num_classes is not None and image.label >= num_classes:
        raise ValueError(f"{image.where} is of class {image.label}; the model has classes 0 to {num_classes - 1}")
    return image.label
