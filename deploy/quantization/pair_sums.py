"""Weights whose products an x86 kernel can add by pairs in 16 bits.

Kernels of x86 processors without an 8-bit dot product multiply unsigned activations by signed weights and add neighbours along the
summed axis in 16 bits (``vpmaddubsw``): ``a[2k] * w[2k, n] + a[2k+1] * w[2k+1, n]``, with a up to 255. The sum is exact for every a when the positive
weights of each pair add up to at most 128, and the negative ones to at least -128 (255 * 128 < 2^15 - 1).
ONNX Runtime's ``reduce_range`` reaches that with 7 bits for every weight; here only the pairs that are too large give way.
"""

from __future__ import annotations

import numpy as np

from deploy.quantization.weights import LARGEST_INTEGER, ScaleType, rounded_scale

LARGEST_SUM = 128
"""Of the weights of one sign in a pair."""
_GROWTHS = (1.0, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0)
"""Candidates for a wider scale; at the last one, nothing has to give way."""


def quantized_in_pairs(
    weight: np.ndarray, scale: np.ndarray, *, scale_type: ScaleType = np.float32
) -> tuple[np.ndarray, np.ndarray]:
    """Quantize a matrix so that no sum of a pair can saturate, at the scale with the smallest squared error.

    A wider scale rounds every weight more coarsely but takes less from the pairs that are too large.

    Args:
        weight: float (K, N), summed over K.
        scale: () or (N,), as chosen without the bound.
        scale_type: type of the scales.

    Returns:
        int8 (K, N) for which :func:`fit_in_pairs` holds, and the scale, shaped as it was given.
    """
    values = np.asarray(weight, np.float32)
    columns = np.full(scale.shape, np.inf)
    best_integers, best_scale = np.zeros(values.shape, np.int8), scale
    for growth in _GROWTHS:
        tried = rounded_scale(scale.astype(np.float32) * np.float32(growth), scale_type)
        factor = tried.astype(np.float32)
        rounded = np.clip(np.rint(values / factor), -LARGEST_INTEGER, LARGEST_INTEGER)
        integers = bounded_in_pairs(rounded.astype(np.int8))
        error = np.square(integers * factor - values).sum(axis=0 if scale.ndim else None, dtype=np.float64)
        better = error < columns
        columns = np.where(better, error, columns)
        best_integers = np.where(better, integers, best_integers)
        best_scale = np.where(better, tried, best_scale)
    return best_integers, best_scale.astype(scale_type)


def fit_in_pairs(integers: np.ndarray) -> bool:
    """Whether no sum of a pair can saturate.

    Args:
        integers: int8 (..., K, N), summed over K; with an odd K the last one has no partner.
    """
    first, second = _pairs(integers)
    highest = np.maximum(first, 0) + np.maximum(second, 0)
    lowest = np.minimum(first, 0) + np.minimum(second, 0)
    return bool((highest <= LARGEST_SUM).all() and (lowest >= -LARGEST_SUM).all())


def fit_in_any_pairs(integers: np.ndarray) -> bool:
    """Whether no two of the weights (int8, any shape) can saturate together, whichever a kernel makes neighbours."""
    halves = LARGEST_SUM // 2
    return bool(integers.min(initial=0) >= -halves and integers.max(initial=0) <= halves)


def bounded_in_pairs(integers: np.ndarray) -> np.ndarray:
    """The nearest integers for which :func:`fit_in_pairs` holds: what a pair has too much is taken from both halves alike.

    Args:
        integers: int8 (..., K, N), summed over K.

    Returns:
        int8 of the same shape; equal where pairs fit already.
    """
    first, second = _pairs(integers)
    excess = np.abs(first + second) - LARGEST_SUM
    excess[(first < 0) != (second < 0)] = 0  # of two signs: each alone fits
    np.maximum(excess, 0, out=excess)
    bounded = integers.copy()
    # Above 128 together with halves of at most 127, each half is larger than what it gives.
    bounded[..., 0 : 2 * first.shape[-2] : 2, :] = first - np.sign(first) * ((excess + 1) // 2)
    bounded[..., 1 : 2 * first.shape[-2] : 2, :] = second - np.sign(second) * (excess // 2)
    return bounded


def _pairs(integers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    whole = integers.shape[-2] // 2 * 2
    paired = integers[..., :whole, :]
    return paired[..., 0::2, :].astype(np.int16), paired[..., 1::2, :].astype(np.int16)
