"""What rounding does to one tensor, seen on its values alone."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from deploy.calibration.quant_params import QuantParams


@dataclass(kw_only=True, slots=True)
class RoundingFigures:
    """Sums over everything that was seen of one tensor."""

    count: int = 0
    saturated: int = 0
    """Values that lie more than half a step outside of the range."""
    zeroed: int = 0
    """Values other than 0 that become 0."""
    signal: float = 0.0
    noise: float = 0.0

    def add(self, parts: Iterable[np.ndarray], params: QuantParams) -> None:
        """Count values, arrays of any shape."""
        for part in parts:
            values = part.astype(np.float64, copy=False)
            steps = np.rint(values / params.scale) + params.zero_point
            integers = np.clip(steps, params.qmin, params.qmax)
            self.count += values.size
            self.saturated += int(np.count_nonzero(steps != integers))
            self.zeroed += int(np.count_nonzero((integers == params.zero_point) & (values != 0)))
            self.signal += float(np.square(values).sum())
            self.noise += float(np.square((integers - params.zero_point) * params.scale - values).sum())

    def add_pair(self, exact: np.ndarray, rounded: np.ndarray) -> None:
        """Count what was rounded elsewhere, a weight."""
        self.count += exact.size
        self.zeroed += int(np.count_nonzero((rounded == 0) & (exact != 0)))
        self.signal += float(np.square(exact, dtype=np.float64).sum())
        self.noise += float(np.square(rounded.astype(np.float64) - exact).sum())

    @property
    def saturated_share(self) -> float:
        """In [0, 1]."""
        return self.saturated / self.count if self.count else 0.0

    @property
    def zeroed_share(self) -> float:
        """In [0, 1]."""
        return self.zeroed / self.count if self.count else 0.0


def decibels(signal: float, noise: float) -> float | None:
    """Signal to noise in dB; None where nothing was changed at all."""
    if noise == 0:
        return None
    return 10 * math.log10(signal / noise) if signal > 0 and math.isfinite(noise) else -math.inf
