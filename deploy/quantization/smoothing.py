"""SmoothQuant (Xiao et al., ICML 2023, equation 4): part of the activations' outliers moves into the weights, outputs unchanged.

    s_k = max|x_k|^alpha / max|W_k|^(1 - alpha)     x' = x / s     W' = diag(s) W

Where all readers of a norm's output are linear layers, 1/s goes into the norm's gain and bias; elsewhere (norms after the blocks,
whose output the residual reads as well) a ``Mul`` is written before the layers.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper

from deploy.graphs.graph_index import GraphIndex
from deploy.graphs.graph_patterns import Linear, find_linears
from deploy.graphs.profiles import PROFILES
from deploy.graphs.sites import find_sites
from deploy.graphs.unread_constants import drop_unread_constants
from deploy.quantization.channel_statistics import ChannelStatistics

_SMALLEST = 1e-5
"""Channels and rows below this are left as they are."""


def smoothed_tensors(model: onnx.ModelProto) -> dict[str, list[Linear]]:
    """Tensors that are smoothed, with the linear layers that read them: the inputs of quantized MatMuls."""
    index = GraphIndex(model.graph)
    quantized = {site.reader.node.output[0] for site in find_sites(model, PROFILES["tensorrt"]).weights}
    groups: dict[str, list[Linear]] = {}
    for linear in find_linears(index):
        if linear.node.output[0] in quantized and linear.node.op_type == "MatMul":
            groups.setdefault(linear.input, []).append(linear)
    # A weight that two tensors share cannot follow both.
    weights = [linear.weight for group in groups.values() for linear in group]
    return {
        tensor: group
        for tensor, group in groups.items()
        if all(weights.count(linear.weight) == 1 and len(index.uses(linear.weight)) == 1 for linear in group)
    }


def smooth(model: onnx.ModelProto, statistics: Mapping[str, ChannelStatistics], *, alpha: float = 0.5) -> int:
    """Smooth a float graph in place; returns how many tensors were.

    Args:
        model: float graph; weights as initializers.
        statistics: per channel, of :func:`smoothed_tensors`.
        alpha: share of the outliers that moves, in (0, 1).

    Raises:
        ValueError: alpha outside its range.
    """
    if not 0.0 < alpha < 1.0:
        raise ValueError(f"alpha is {alpha}; expected above 0 and below 1")
    graph = model.graph
    index = GraphIndex(graph)
    done = 0
    for tensor, linears in smoothed_tensors(model).items():
        arrays = [index.constant_value(linear.weight).astype(np.float64) for linear in linears]
        rows_K = np.max([np.abs(array).max(axis=1) for array in arrays], axis=0)
        amax_K = statistics[tensor].amax
        factor_K = np.ones_like(amax_K)
        live = (amax_K > _SMALLEST) & (rows_K > _SMALLEST)
        factor_K[live] = amax_K[live] ** alpha / rows_K[live] ** (1 - alpha)
        for linear, array in zip(linears, arrays, strict=True):
            name = f"{linear.weight}/smoothed"
            graph.initializer.append(numpy_helper.from_array((factor_K[:, None] * array).astype(np.float32), name))
            linear.node.input[1] = name
        if not _fold_into_norm(graph, index, tensor, factor_K, readers=len(linears)):
            _divide(graph, tensor, factor_K, linears)
        done += 1
    drop_unread_constants(graph)
    return done


def _fold_into_norm(
    graph: onnx.GraphProto, index: GraphIndex, tensor: str, factor_K: np.ndarray, *, readers: int
) -> bool:
    node = index.producer(tensor)
    uses = [use for use in index.uses(tensor) if use.node.op_type != "Shape"]
    if node is None or node.op_type != "LayerNormalization" or len(uses) != readers or tensor in index.outputs:
        return False
    for slot in range(1, len(node.input)):
        name = f"{tensor}/smoothed/{slot}"
        value = index.constant_value(node.input[slot]) / factor_K
        graph.initializer.append(numpy_helper.from_array(value.astype(np.float32), name))
        node.input[slot] = name
    return True


def _divide(graph: onnx.GraphProto, tensor: str, factor_K: np.ndarray, linears: list[Linear]) -> None:
    name, inverse = f"{tensor}/smoothed", f"{tensor}/smoothed/inverse"
    graph.initializer.append(numpy_helper.from_array((1 / factor_K).astype(np.float32), inverse))
    first = min(place for place, node in enumerate(graph.node) if any(node is linear.node for linear in linears))
    for linear in linears:
        linear.node.input[0] = name
    graph.node.insert(first, helper.make_node("Mul", [tensor, inverse], [name], name=f"{tensor}/Smooth"))
