"""Bias correction (Nagel et al., ICCV 2019, section 4.2): what rounding the weights adds to a layer's mean output goes out of its bias.

    b' = b + E[x] (W - W_q)

E[x] is measured on data; only the weights' error is corrected, since that of the activations has no fixed mean.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import numpy_helper

from deploy.graphs.graph_index import GraphIndex
from deploy.graphs.graph_patterns import Linear, find_linears
from deploy.quantization.channel_statistics import ChannelStatistics


def corrected_layers(model: onnx.ModelProto) -> list[Linear]:
    """Linear layers of a float graph that have a bias of their own to correct: ``MatMul`` and ``Add``."""
    index = GraphIndex(model.graph)
    return [
        linear for linear in find_linears(index) if linear.node.op_type == "MatMul" and _bias(index, linear) is not None
    ]


def correct_biases(
    floats: onnx.ModelProto, quantized: onnx.ModelProto, statistics: Mapping[str, ChannelStatistics]
) -> int:
    """Change the biases of ``quantized`` in place; returns how many.

    Args:
        floats: the float graph.
        quantized: its Q/DQ graph, with the names of the float graph.
        statistics: of the inputs of :func:`corrected_layers`.
    """
    index, after = GraphIndex(floats.graph), GraphIndex(quantized.graph)
    stored = {tensor.name: tensor for tensor in quantized.graph.initializer}
    done = 0
    for linear in corrected_layers(floats):
        node = after.producer(linear.node.output[0])
        dequantized = after.producer(node.input[1]) if node is not None else None
        bias = _bias(index, linear)
        if dequantized is None or dequantized.op_type != "DequantizeLinear":
            continue
        if bias is None or bias not in stored or len(after.uses(bias)) != 1:
            continue
        integers = numpy_helper.to_array(stored[dequantized.input[0]]).astype(np.float64)
        scale = numpy_helper.to_array(stored[dequantized.input[1]]).astype(np.float64)
        error_KN = index.constant_value(linear.weight) - integers * scale  # of one scale, or one per output feature
        value = numpy_helper.to_array(stored[bias]) + statistics[linear.input].mean @ error_KN
        stored[bias].CopyFrom(numpy_helper.from_array(value.astype(np.float32), bias))
        done += 1
    return done


def _bias(index: GraphIndex, linear: Linear) -> str | None:
    """Stored vector that is added to the product."""
    if linear.output == linear.node.output[0]:
        return None
    adder = index.producer(linear.output)
    names = [name for name in adder.input if name in index.initializers] if adder is not None else []
    return names[0] if names and len(index.initializers[names[0]].dims) == 1 else None
