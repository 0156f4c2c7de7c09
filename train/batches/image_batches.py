"""Images as batches whose content, random crops and flips included, is a pure function of seed and step.

Images are decoded once, by whoever reads them, and kept as bytes of pixels at the model's size; they are shifted, flipped and
normalised when a batch is made.

Shapes: N images, B images of a batch, H height, W width, C colours.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Batch = dict[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelledPixels:
    """Decoded images of one size with their classes, and how they are normalised.

    Raises:
        ValueError: no image, shapes or types that do not fit, or a negative label.
    """

    pixels: NDArray[np.uint8]
    """(N, H, W, C)."""
    labels: NDArray[np.int64]
    """(N,) class numbers from 0."""
    mean: tuple[float, float, float]
    """Subtracted after dividing by 255, by colour."""
    std: tuple[float, float, float]
    """Divided by afterwards, by colour."""

    def __post_init__(self) -> None:
        """Check shapes and types."""
        pixels, labels = self.pixels, self.labels
        if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[3] != 3:
            raise ValueError(f"pixels have shape {pixels.shape} and type {pixels.dtype}; expected uint8 (N, H, W, 3)")
        if not len(pixels):
            raise ValueError("no image; expected at least one")
        if labels.shape != (len(pixels),) or not np.issubdtype(labels.dtype, np.integer):
            raise ValueError(
                f"labels have shape {labels.shape} and type {labels.dtype}; expected {len(pixels)} class numbers"
            )
        if int(labels.min()) < 0:
            raise ValueError(f"a label is {int(labels.min())}; expected class numbers from 0")

    def __len__(self) -> int:
        """Number of images."""
        return len(self.pixels)

    def batch(self, indices_B: NDArray[np.int64], *, changed_BHWC: NDArray[np.uint8] | None = None) -> Batch:
        """Normalised images and their labels.

        Args:
            indices_B: which images.
            changed_BHWC: their pixels after augmentation; by default as they are.

        Returns:
            ``pixel_values`` float32 (B, C, H, W) and ``labels`` int64 (B,).
        """
        pixels_BHWC = self.pixels[indices_B] if changed_BHWC is None else changed_BHWC
        values_BCHW = torch.from_numpy(pixels_BHWC).permute(0, 3, 1, 2).to(torch.float32).contiguous().div_(255)
        values_BCHW.sub_(torch.tensor(self.mean)[:, None, None]).div_(torch.tensor(self.std)[:, None, None])
        return {
            "pixel_values": values_BCHW,
            "labels": torch.from_numpy(self.labels[indices_B].astype(np.int64, copy=False)),
        }

    def sha256(self) -> str:
        """Hex sha256 of size, pixels and labels."""
        digest = hashlib.sha256(repr(self.pixels.shape).encode())
        digest.update(np.ascontiguousarray(self.pixels).data)
        digest.update(np.ascontiguousarray(self.labels, dtype="<i8").data)
        return digest.hexdigest()


def sequential_image_batches(images: LabelledPixels, *, batch_size: int) -> list[Batch]:
    """Every image once, in the given order, the last batch possibly smaller: for calibration and evaluation."""
    order_N = np.arange(len(images))
    return [images.batch(order_N[start : start + batch_size]) for start in range(0, len(images), batch_size)]


class ImageBatches:
    """Shuffled batches of labelled images, addressed by step.

    Each epoch is a fresh permutation from ``(seed, epoch)``; the images that do not fill a batch are left out, others in each
    epoch. Crops and flips are drawn from ``(seed, step)`` for the whole batch, so they are the same however many processes
    share it.

    Raises:
        ValueError: fewer images than a batch takes, or a negative padding.
    """

    def __init__(
        self, images: LabelledPixels, *, batch_size: int, seed: int, crop_padding: int = 0, flip: bool = False
    ) -> None:
        """Take the images; nothing is copied.

        Args:
            images: what to draw from.
            batch_size: images of an update, over all processes.
            seed: of order, crops and flips.
            crop_padding: pixels of black added on each side before a crop of the original size at a random place; 0: none.
            flip: mirror every image left to right with probability one half.
        """
        if len(images) < batch_size:
            raise ValueError(f"{len(images)} training images do not fill a batch of {batch_size}")
        if crop_padding < 0:
            raise ValueError(f"crop_padding is {crop_padding}; expected at least 0 pixels")
        self._images = images
        self._batch_size = batch_size
        self._seed = seed
        self._crop_padding = crop_padding
        self._flip = flip
        self._order = lru_cache(maxsize=2)(self._make_order)

    @property
    def batches_per_epoch(self) -> int:
        """Full batches in one pass over the images."""
        return len(self._images) // self._batch_size

    def identity(self) -> dict[str, Any]:
        """What decides the batches, for refusing to resume on other data."""
        return {
            "images_sha256": self._images.sha256(),
            "num_images": len(self._images),
            "mean": list(self._images.mean),
            "std": list(self._images.std),
            "crop_padding": self._crop_padding,
            "flip": self._flip,
        }

    def image_indices(self, step: int) -> NDArray[np.int64]:
        """Indices of the images in batch ``step``; steps run on through the epochs."""
        epoch, index = divmod(step, self.batches_per_epoch)
        return self._order(epoch)[index * self._batch_size : (index + 1) * self._batch_size]

    def batch(self, step: int, *, part: int = 0, num_parts: int = 1) -> Batch:
        """One part of batch ``step``: every ``num_parts``-th image from ``part`` on.

        Returns:
            ``pixel_values`` float32 (B / num_parts, C, H, W) and ``labels`` int64 (B / num_parts,).
        """
        indices_B = self.image_indices(step)
        generator = np.random.default_rng((self._seed, step, 1))  # three numbers: no epoch's order has this seed
        offsets_B2 = generator.integers(0, 2 * self._crop_padding + 1, size=(len(indices_B), 2))
        flipped_B = generator.random(len(indices_B)) < 0.5 if self._flip else np.zeros(len(indices_B), dtype=bool)
        mine = slice(part, None, num_parts)
        changed_BHWC = self._augmented(indices_B[mine], offsets_B2[mine], flipped_B[mine])
        return self._images.batch(indices_B[mine], changed_BHWC=changed_BHWC)

    def _augmented(
        self, indices_B: NDArray[np.int64], offsets_B2: NDArray[np.int64], flipped_B: NDArray[np.bool_]
    ) -> NDArray[np.uint8]:
        padding = self._crop_padding
        _, height, width, _ = self._images.pixels.shape
        padded_BHWC = np.pad(self._images.pixels[indices_B], ((0, 0), (padding, padding), (padding, padding), (0, 0)))
        rows_BH = offsets_B2[:, :1] + np.arange(height)
        columns_BW = offsets_B2[:, 1:] + np.where(flipped_B[:, None], np.arange(width)[::-1], np.arange(width))
        image_B = np.arange(len(indices_B))
        cropped_BHWC: NDArray[np.uint8] = padded_BHWC[
            image_B[:, None, None], rows_BH[:, :, None], columns_BW[:, None, :]
        ]
        return cropped_BHWC

    def _make_order(self, epoch: int) -> NDArray[np.int64]:
        return np.random.default_rng((self._seed, epoch)).permutation(len(self._images))
