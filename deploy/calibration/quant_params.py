"""From a range to scale and zero point."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

SMALLEST_AMAX = float(np.finfo(np.float32).tiny) * 2.0**16
"""Tensors smaller than this count as 0: their scale would not be a normal float32."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantParams:
    """``q = clip(round(x / scale) + zero_point, qmin, qmax)``."""

    scale: float
    """Positive; exactly representable in float32."""
    zero_point: int
    qmin: int
    qmax: int


def quant_params(low: float, high: float, *, bits: int = 8, symmetric: bool = True) -> QuantParams:
    """Scale and zero point for a range.

    Symmetric: ``scale = max(|low|, |high|) / (2^(bits-1) - 1)``, zero point 0, signed; the one integer more on the
    negative side is used. Asymmetric: ``scale = (high - low) / (2^bits - 1)``, unsigned. The range is first widened to
    contain 0; an empty one becomes 1 wide, so that a scale is never 0 (:func:`deploy.calibration.ranges.range_warning` tells).

    Raises:
        ValueError: the range is not finite or upside down, or ``bits`` is not in 2..16.
    """
    if not 2 <= bits <= 16:
        raise ValueError(f"bits is {bits}; expected 2 to 16")
    if not (math.isfinite(low) and math.isfinite(high)) or low > high:
        raise ValueError(f"[{low}, {high}] is no range; expected finite ends in order")
    low, high = safe_range(*with_zero(low, high), symmetric=symmetric)
    if symmetric:
        qmax = 2 ** (bits - 1) - 1
        return QuantParams(scale=_float32(max(-low, high) / qmax), zero_point=0, qmin=-qmax - 1, qmax=qmax)
    qmax = 2**bits - 1
    scale = _float32((high - low) / qmax)
    return QuantParams(scale=scale, zero_point=min(qmax, max(0, round(-low / scale))), qmin=0, qmax=qmax)


def with_zero(low: float, high: float) -> tuple[float, float]:
    """The range widened to contain 0."""
    return min(low, 0.0), max(high, 0.0)


def safe_range(low: float, high: float, *, symmetric: bool) -> tuple[float, float]:
    """The range itself, or one of width 1 on each used side where it is (all but) empty."""
    if max(-low, high) >= SMALLEST_AMAX:
        return low, high
    return (-1.0 if symmetric else 0.0), 1.0


def _float32(value: float) -> float:
    return float(np.float32(value))
