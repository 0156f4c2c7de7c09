"""Mixup and CutMix: images of a batch mixed in pairs, labels with them, as a function of seed and step.

Mixup (Zhang et al. 2018) adds two images with weights ``s`` and ``1 - s``; CutMix (Yun et al. 2019) pastes a rectangle of the second that
covers ``1 - s`` of the first. ``s`` is drawn per image from Beta(a, a). Where both are on, each image gets one of the two with even odds.

Shapes: B images, C colours, H height, W width.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from train.batches.text_batches import Batch
from train.loop.optimizer_update import BatchSource
from train.objectives.classification import LABELS, OTHER_LABELS, SHARE


class MixedImages:
    """A source whose images are mixed.

    Raises:
        ValueError: a negative parameter, or both 0.
    """

    def __init__(self, source: BatchSource, *, seed: int, mixup: float = 0.0, cutmix: float = 0.0) -> None:
        """Bind a source.

        Args:
            source: gives ``pixel_values`` (B, C, H, W) and ``labels`` (B,).
            seed: of everything random.
            mixup: parameter ``a`` of Mixup; 0 leaves it out.
            cutmix: parameter ``a`` of CutMix; 0 leaves it out.
        """
        if mixup < 0 or cutmix < 0 or not (mixup or cutmix):
            raise ValueError(f"mixup is {mixup} and cutmix {cutmix}; expected at least 0, and one of them above it")
        self._source, self._seed, self._mixup, self._cutmix = source, seed, mixup, cutmix

    def identity(self) -> dict[str, Any]:
        """What decides the batches."""
        return self._source.identity() | {"mixup": self._mixup, "cutmix": self._cutmix}

    def batch(self, step: int, *, part: int = 0, num_parts: int = 1) -> Batch:
        """One part of batch ``step``; the whole batch is mixed, so every division of it sees the same images."""
        whole = self._source.batch(step)
        pixels_BCHW, labels_B = whole["pixel_values"], whole[LABELS]
        count, _, height, width = pixels_BCHW.shape
        generator = np.random.default_rng((self._seed, step, 2))  # 2: the source's own draws have another third number
        partner_B = torch.from_numpy(generator.permutation(count))
        even_odds_B = generator.random(count) < 0.5
        cuts_B = even_odds_B if self._mixup and self._cutmix else np.full(count, bool(self._cutmix))
        share_B = np.where(cuts_B, _beta(generator, self._cutmix, count), _beta(generator, self._mixup, count))
        corner_B2 = generator.random((count, 2))
        weight_B1HW = np.broadcast_to(share_B[:, None, None, None], (count, 1, height, width)).astype(np.float32).copy()
        for index in np.flatnonzero(cuts_B):
            side = np.sqrt(1 - share_B[index])
            rows, columns = (
                slice(start := round(at * (size - (extent := round(side * size)))), start + extent)
                for at, size in zip(corner_B2[index], (height, width), strict=True)
            )
            weight_B1HW[index] = 1
            weight_B1HW[index, :, rows, columns] = 0
            share_B[index] = weight_B1HW[index].mean()
        weights = torch.from_numpy(weight_B1HW)
        mixed_BCHW = weights * pixels_BCHW + (1 - weights) * pixels_BCHW[partner_B]
        mixed = {
            "pixel_values": mixed_BCHW,
            LABELS: labels_B,
            OTHER_LABELS: labels_B[partner_B],
            SHARE: torch.from_numpy(share_B.astype(np.float32)),
        }
        return {name: x[part::num_parts] for name, x in mixed.items()}


def _beta(generator: np.random.Generator, parameter: float, count: int) -> Any:
    return generator.beta(parameter, parameter, size=count) if parameter else np.ones(count)
