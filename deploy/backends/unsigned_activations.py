"""Write signed activations as unsigned ones, which x86 integer kernels are made for.

    clip(round(x / s), -128, 127)  =  clip(round(x / s) + 128, 0, 255) - 128

so int8 with zero point z and uint8 with zero point z + 128 dequantize to exactly the same numbers. VNNI multiplies
unsigned by signed: ONNX Runtime runs signed activations in float or in a reference kernel, OpenVINO shifts them on
every call. The file on disk, which TensorRT needs signed, stays as it is.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.external_data_helper import uses_external_data

from deploy.graphs.graph_index import GraphIndex
from deploy.graphs.unread_constants import drop_unread_constants

_SHIFT = 128


def use_unsigned_activations(model: onnx.ModelProto) -> int:
    """Rewrite ``model`` in place; return how many QuantizeLinear nodes changed.

    A QuantizeLinear changes when its zero point is a int8 constant stored in the graph and everything that reads it is a
    DequantizeLinear. Weights (constants behind a DequantizeLinear) are never touched.
    """
    index = GraphIndex(model.graph)
    changed = 0
    for node in index.nodes:
        readers = [use.node for use in index.uses(node.output[0])]
        if node.op_type != "QuantizeLinear" or len(node.input) < 3 or node.output[0] in index.outputs:
            continue
        zero_point = index.initializers.get(node.input[2])
        if zero_point is None or zero_point.data_type != onnx.TensorProto.INT8 or uses_external_data(zero_point):
            continue
        if not readers or any(reader.op_type != "DequantizeLinear" or len(reader.input) < 3 for reader in readers):
            continue
        shifted = (numpy_helper.to_array(zero_point).astype(np.int16) + _SHIFT).astype(np.uint8)
        name = f"{node.output[0]}/unsigned_zero_point"
        model.graph.initializer.append(numpy_helper.from_array(shifted, name))
        for user in (node, *readers):
            user.input[2] = name
        changed += 1
    if changed:
        drop_unread_constants(model.graph)
        _forget_signed_types(model.graph)
    return changed


def _forget_signed_types(graph: onnx.GraphProto) -> None:
    signed = {node.output[0] for node in graph.node if node.op_type == "QuantizeLinear"}
    for place in reversed(range(len(graph.value_info))):
        if graph.value_info[place].name in signed:
            del graph.value_info[place]
