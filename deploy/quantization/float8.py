"""Weights and scales in FP8 (E4M3): ``x ~ scale * f`` with ``f`` a float of 4 exponent and 3 mantissa bits, up to 448.

The range is the largest magnitude, without a clip: unlike an integer, a float keeps its relative step however far an outlier
pushes the scale. Elements are those of ONNX's FLOAT8E4M3FN, rounded half to even, as QuantizeLinear rounds.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from deploy.quantization.weights import SMALLEST_SCALE, ScaleType, largest_magnitude, rounded_scale

LARGEST = 448.0
"""Largest finite E4M3 number (ONNX's FLOAT8E4M3FN)."""
LOWEST_OPSET = 19
"""First opset whose QuantizeLinear gives FP8 (ONNX operator reference)."""
ELEMENT = "float8_e4m3fn"
"""As NumPy calls the type; importing ml_dtypes makes the name known."""
ELEMENT_TYPE: np.dtype[Any] = np.dtype(ml_dtypes.float8_e4m3fn)


def float8_scale(amax: float) -> float:
    """Scale that maps the largest magnitude to the largest number."""
    return max(amax / LARGEST, SMALLEST_SCALE)


def float8_weight(
    weight: np.ndarray, *, axis: int | None = None, scale_type: ScaleType = np.float32
) -> tuple[np.ndarray, np.ndarray]:
    """Round one weight tensor.

    Args:
        weight: float array of any shape.
        axis: one scale per index of this axis; None for one scale.
        scale_type: type of the scales; the elements are those of the rounded scale.

    Returns:
        E4M3 array of the same shape, and the scale(s): shape () or (weight.shape[axis],).

    Raises:
        ValueError: a value that is not finite.
    """
    values = np.asarray(weight, np.float32)
    others = None if axis is None else tuple(other for other in range(values.ndim) if other != axis)
    amax = largest_magnitude(values, others)
    if not np.isfinite(amax).all():
        raise ValueError("holds values that are not finite")
    scale = rounded_scale(np.maximum(amax / LARGEST, SMALLEST_SCALE), scale_type)
    shaped = scale.astype(np.float32)
    if others is not None:
        shaped = np.expand_dims(shaped, others)
    return np.clip(values / shaped, -LARGEST, LARGEST).astype(ELEMENT_TYPE), scale
