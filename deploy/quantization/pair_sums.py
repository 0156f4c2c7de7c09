"""Weights whose products an x86 kernel can add by pairs in 16 bits.

Kernels of x86 processors without an 8-bit dot product multiply unsigned activations by signed weights and add neighbours along the
summed axis in 16 bits (``vpmaddubsw``): ``a[2k] * w[2k, n] + a[2k+1] * w[2k+1, n]``, with a up to 255. The sum is exact for every a when the positive
weights of each pair add up to at most 128, and the negative ones to at least -128 (255 * 128 < 2^15 - 1).
ONNX Runtime's ``reduce_range`` reaches that with 7 bits for every weight; here only the pairs that are too large give way.
"""

from __future__ import annotations

import numpy as np

LARGEST_SUM = 128
"""Of the weights of one sign in a pair."""


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
