"""One constant of a graph as what is stored of it: integers or FP8 numbers, and their scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import onnx

from deploy.graphs.graph_index import GraphIndex
from deploy.graphs.profiles import Profile
from deploy.graphs.sites import WeightSite
from deploy.quantization.bits import Bits
from deploy.quantization.float8 import LOWEST_OPSET, float8_weight
from deploy.quantization.pair_sums import quantized_in_pairs
from deploy.quantization.qdq_nodes import ScaledWeight
from deploy.quantization.weights import ScaleType, WeightMethod, quantize_weight

_ANY_PAIRS = 7
"""Bits of weights of which no two can saturate together."""
WeightRanges = Literal["minmax", "mse", "per-channel"]


def stored_weight(
    index: GraphIndex,
    sites: Sequence[WeightSite],
    *,
    profile: Profile,
    weights: WeightRanges,
    bits: Bits,
    reduce_range: bool = False,
) -> ScaledWeight:
    """Quantize one constant for all its readers.

    Args:
        index: of the graph.
        sites: the constant's, one per reader.
        profile: whether the 8 bits are integers.
        weights: how the range is chosen.
        bits: widths of the integers.
        reduce_range: neighbours in a linear layer's matrix fit into sums of 16 bits (:mod:`deploy.quantization.pair_sums`).

    Raises:
        ValueError: a value that is not finite; names the constant.
    """
    axes = {site.output_axis for site in sites}
    axis = axes.pop() if weights == "per-channel" and len(axes) == 1 else None
    values = index.constant_value(sites[0].tensor)
    scale_type = np.float16 if values.dtype == np.float16 else np.float32
    try:
        if profile.is_float8:
            numbers, scale = float8_weight(values, axis=axis, scale_type=scale_type)
        else:
            method: WeightMethod = "mse" if weights == "mse" else "minmax"
            numbers, scale = quantize_weight(values, bits=bits.weights, method=method, axis=axis, scale_type=scale_type)
            if reduce_range and all(site.kind == "linear" for site in sites):
                numbers, scale = _reduced(values, scale, sites, method=method, axis=axis, scale_type=scale_type)
    except ValueError as error:
        raise ValueError(f"weight '{sites[0].tensor}' {error}") from error
    return ScaledWeight(sites=sites, integers=numbers, scale=scale)


def _reduced(
    values: np.ndarray,
    scale: np.ndarray,
    sites: Sequence[WeightSite],
    *,
    method: WeightMethod,
    axis: int | None,
    scale_type: ScaleType,
) -> tuple[np.ndarray, np.ndarray]:
    """A matrix with bounded neighbours; seven bits where a kernel's neighbours are not known (convolutions, both sides of a tied matrix)."""
    outputs = {site.output_axis for site in sites}
    if values.ndim != 2 or len(outputs) != 1:
        return quantize_weight(values, bits=_ANY_PAIRS, method=method, axis=axis, scale_type=scale_type)
    if outputs == {1}:
        return quantized_in_pairs(values, scale, scale_type=scale_type)
    numbers, scale = quantized_in_pairs(values.T, scale, scale_type=scale_type)
    return np.ascontiguousarray(numbers.T), scale


def check_reduced_range(profile: Profile, bits: Bits) -> None:
    """Refuse a reduced range where it has no effect.

    Raises:
        ValueError: FP8, or weights of other widths than 8.
    """
    if profile.is_float8:
        raise ValueError("a reduced range is for integers; profile 'fp8' has none")
    if bits.weights != 8:
        raise ValueError(f"a reduced range is for weights of 8 bits; {bits} has {bits.weights}")


def check_float8(model: onnx.ModelProto, weights: WeightRanges) -> None:
    """Refuse FP8 where a graph or a setting has no place for it.

    Raises:
        ValueError: an opset without FP8, or a search for clips of integers.
    """
    opset = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    if opset < LOWEST_OPSET:
        raise ValueError(f"FP8 needs opset {LOWEST_OPSET} or newer; the graph has {opset}: export it again")
    if weights == "mse":
        raise ValueError(
            "weights 'mse' searches clips for integers, which FP8 does not need; take minmax or per-channel"
        )
