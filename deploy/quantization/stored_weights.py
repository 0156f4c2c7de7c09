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
from deploy.quantization.qdq_nodes import ScaledWeight
from deploy.quantization.weights import quantize_weight

WeightRanges = Literal["minmax", "mse", "per-channel"]


def stored_weight(
    index: GraphIndex, sites: Sequence[WeightSite], *, profile: Profile, weights: WeightRanges, bits: Bits
) -> ScaledWeight:
    """Quantize one constant for all its readers.

    Args:
        index: of the graph.
        sites: the constant's, one per reader.
        profile: whether the 8 bits are integers.
        weights: how the range is chosen.
        bits: widths of the integers.

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
            method: Literal["mse", "minmax"] = "mse" if weights == "mse" else "minmax"
            numbers, scale = quantize_weight(values, bits=bits.weights, method=method, axis=axis, scale_type=scale_type)
    except ValueError as error:
        raise ValueError(f"weight '{sites[0].tensor}' {error}") from error
    return ScaledWeight(sites=sites, integers=numbers, scale=scale)


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
