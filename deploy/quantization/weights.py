"""Weights as symmetric integers: ``w ~ scale * q`` with ``q`` in [-(2^(b-1) - 1), 2^(b-1) - 1].

The range of a scale is ``max|w|`` (``minmax``, PAPER.md section 5) or the clip that minimises the squared error
(``mse``). The integers are exact round-half-to-even of ``w / scale``, as ONNX ``QuantizeLinear`` rounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import EllipsisType
from typing import Literal, get_args

import numpy as np

WeightMethod = Literal["minmax", "mse"]
ScaleType = type[np.float32] | type[np.float16]

LARGEST_INTEGER = 127
"""Of a weight in 8 bits."""
SMALLEST_SCALE = 2.0**-24
"""Floor of every scale: the smallest positive float16, so that no runtime sees a zero."""
_MAGNITUDE_BINS = 1 << 12
_COARSE_CANDIDATES = 128
_FINE_CANDIDATES = 65
_NARROWEST = 0.05
_BLOCK = 1 << 16


def quantize_weight(
    weight: np.ndarray,
    *,
    bits: int = 8,
    method: WeightMethod = "minmax",
    axis: int | None = None,
    scale_type: ScaleType = np.float32,
) -> tuple[np.ndarray, np.ndarray]:
    """Quantize one weight tensor.

    Args:
        weight: float array of any shape.
        bits: 2 to 16; up to 8 stored as int8, above as int16.
        method: how the range is chosen.
        axis: one scale per index of this axis; None for one scale.
        scale_type: type of the scales; the integers are those of the rounded scale.

    Returns:
        int8 or int16 array of the same shape, and the scale(s): shape () or (weight.shape[axis],).

    Raises:
        ValueError: an unknown method, bits out of range, or a value that is not finite.
    """
    if method not in get_args(WeightMethod):
        raise ValueError(f"unknown weight range method '{method}'; known are {', '.join(get_args(WeightMethod))}")
    if not 2 <= bits <= 16:
        raise ValueError(f"{bits} bits for a weight; expected 2 to 16")
    values = np.asarray(weight, np.float32)
    amax = largest_magnitude(values, _other_axes(values.ndim, axis))
    if not np.isfinite(amax).all():
        raise ValueError("holds values that are not finite")
    qmax = 2 ** (bits - 1) - 1
    if method == "mse":
        slices = [values] if axis is None else np.moveaxis(values, axis, 0)
        clips = [_best_clip(part.ravel(), float(top), qmax=qmax) for part, top in zip(slices, amax.flat, strict=True)]
        amax = np.reshape(clips, amax.shape)
    scale = rounded_scale(np.maximum(amax / qmax, SMALLEST_SCALE), scale_type)
    return _to_integers(values, scale.astype(np.float32), qmax=qmax, axis=axis), scale


def rounded_scale(scale: np.ndarray | float, scale_type: ScaleType) -> np.ndarray:
    """A scale in the type that a graph stores: the nearest float32, but the next larger float16.

    float16 has few digits, and fewer still below 6e-5: rounded up, no value of the range is cut off.

    Raises:
        ValueError: a scale that the type does not hold: float16 ends at 65504.
    """
    exact = np.asarray(scale, np.float32)
    largest = float(np.finfo(scale_type).max)
    if (exact > largest).any():
        raise ValueError(
            f"needs a scale of {float(exact.max()):.3g}; {np.dtype(scale_type).name} ends at {largest:.5g}"
        )
    rounded: np.ndarray = exact.astype(scale_type)
    too_small = rounded.astype(np.float32) < exact
    return np.where(too_small, np.nextafter(rounded, scale_type(np.inf)), rounded)


def largest_magnitude(values: np.ndarray, axes: tuple[int, ...] | None) -> np.ndarray:
    """Largest absolute value over ``axes``, without an array of absolute values; NaN where there is one."""
    largest: np.ndarray = np.maximum(values.max(axis=axes, initial=0.0), -values.min(axis=axes, initial=0.0))
    return largest


def _other_axes(ndim: int, axis: int | None) -> tuple[int, ...]:
    return tuple(range(ndim)) if axis is None else tuple(other for other in range(ndim) if other != axis)


def _to_integers(values: np.ndarray, scale: np.ndarray, *, qmax: int, axis: int | None) -> np.ndarray:
    shaped = scale if axis is None else np.expand_dims(scale, _other_axes(values.ndim, axis))
    integers: np.ndarray = np.empty_like(values, np.int8 if qmax <= LARGEST_INTEGER else np.int16)
    for block in _blocks(values):
        integers[block] = _rounded(values[block] / (shaped[block] if axis == 0 else shaped), qmax)
    return integers


def _rounded(scaled: np.ndarray, qmax: int) -> np.ndarray:
    """The nearest integers within [-qmax, qmax], in place."""
    np.rint(scaled, out=scaled)
    np.maximum(scaled, -qmax, out=scaled)
    np.minimum(scaled, qmax, out=scaled)
    return scaled


def _blocks(values: np.ndarray) -> Iterator[slice | EllipsisType]:
    """Indices that cut an array along its first axis into parts which stay in a processor's cache."""
    if values.size <= _BLOCK:
        yield ...
        return
    step = max(1, _BLOCK * len(values) // values.size)
    for start in range(0, len(values), step):
        yield slice(start, start + step)


def _best_clip(values: np.ndarray, amax: float, *, qmax: int) -> float:
    """Clip that minimises the squared error, never worse than ``amax``.

    The candidates are ranked on a fine histogram of magnitudes (the error is symmetric), which costs the same for any
    number of weights; the winner must then beat ``amax`` on the weights themselves.
    """
    if amax <= SMALLEST_SCALE * qmax:
        return amax
    counts = np.zeros(_MAGNITUDE_BINS, np.int64)
    for block in _blocks(values):
        bins = (np.abs(values[block]) * (_MAGNITUDE_BINS / amax)).astype(np.int32)
        counts += np.bincount(np.minimum(bins, _MAGNITUDE_BINS - 1), minlength=_MAGNITUDE_BINS)
    filled = np.flatnonzero(counts)
    magnitudes = (filled + 0.5) * (amax / _MAGNITUDE_BINS)
    weights = counts[filled].astype(np.float64)

    def ranked_best(clips: np.ndarray) -> float:
        errors = [_squared_error(magnitudes, clip / qmax, qmax=qmax, weights=weights) for clip in clips]
        return float(clips[int(np.argmin(errors))])

    step = (1.0 - _NARROWEST) / (_COARSE_CANDIDATES - 1) * amax
    coarse = ranked_best(np.linspace(_NARROWEST * amax, amax, _COARSE_CANDIDATES))
    fine = ranked_best(np.linspace(max(coarse - step, step / 2), min(coarse + step, amax), _FINE_CANDIDATES))
    exact = {
        clip: sum(_squared_error(values[block], clip / qmax, qmax=qmax) for block in _blocks(values))
        for clip in (amax, fine)
    }
    return min(exact, key=lambda clip: exact[clip])


def _squared_error(values: np.ndarray, scale: float, *, qmax: int, weights: np.ndarray | None = None) -> float:
    factor = np.float32(scale) if values.dtype == np.float32 else scale
    squares: np.ndarray = _rounded(values / factor, qmax)
    squares *= factor
    np.subtract(values, squares, out=squares)
    np.square(squares, out=squares)
    return float(squares.sum(dtype=np.float64) if weights is None else squares @ weights)
