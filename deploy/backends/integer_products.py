"""Write a quantized linear layer as the one operator that ONNX Runtime computes it with, its bias included.

    DequantizeLinear(a), DequantizeLinear(w) -> MatMul -> Add(bias)    becomes    MatMulIntegerToFloat(a, w, ..., bias)

ONNX Runtime finds the same operator by itself, but leaves the bias to a pass of its own over the result, or to a SkipLayerNormalization
that is slower than a sum and a LayerNormalization. Products of integers are the same; the bias is added to the same float.
The operator is ONNX Runtime's (``com.microsoft``), so this happens while a graph is loaded and never in a file.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx
from onnx import TensorProto, helper

from deploy.graphs.graph_index import GraphIndex, attribute
from deploy.graphs.unread_constants import read_tensors

DOMAIN = "com.microsoft"
OPERATOR = "MatMulIntegerToFloat"
_INTEGERS = (TensorProto.INT8, TensorProto.UINT8)


def use_integer_products(model: onnx.ModelProto) -> int:
    """Rewrite ``model`` in place; return how many products became :data:`OPERATOR`.

    A product is taken when its left side is a tensor in uint8 and its right side a stored matrix in 8 bits, with float32 scales: one for the
    left, one or one per column for the right. Other products stay as they are.
    """
    index = GraphIndex(model.graph)
    fused: dict[int, onnx.NodeProto] = {}
    dropped: set[int] = set()
    for node in index.nodes:
        operands = _operands(index, node) if node.op_type == "MatMul" else None
        if operands is None:
            continue
        output, bias = node.output[0], ""
        reader = index.only_use(output)
        if reader is not None and reader.node.op_type == "Add" and reader.slot >= 0:
            other = reader.node.input[1 - reader.slot]
            if _is_vector(index.initializers.get(other), operands.columns):
                bias, output = other, reader.node.output[0]
                dropped.add(id(reader.node))
        inputs = (*operands.inputs, bias)
        fused[id(node)] = helper.make_node(OPERATOR, inputs, [output], name=node.name, domain=DOMAIN)
    if fused:
        nodes = [fused.get(id(node), node) for node in index.nodes if id(node) not in dropped]
        del model.graph.node[:]
        model.graph.node.extend(nodes)
        _drop_unread_dequantizations(model.graph)
        if all(entry.domain != DOMAIN for entry in model.opset_import):
            model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    return len(fused)


@dataclass(frozen=True, slots=True)
class _Operands:
    """Inputs of the operator up to the bias, an empty name where there is none; and the columns of its result."""

    inputs: tuple[str, ...]
    columns: int


def _operands(index: GraphIndex, node: onnx.NodeProto) -> _Operands | None:
    left, right = (index.producer(name) for name in node.input)
    if left is None or right is None or {left.op_type, right.op_type} != {"DequantizeLinear"}:
        return None
    weight = index.initializers.get(right.input[0])
    if weight is None or len(weight.dims) != 2 or weight.data_type not in _INTEGERS:
        return None
    zero = index.initializers.get(left.input[2]) if len(left.input) > 2 else None
    if index.is_constant(left.input[0]) or zero is None or zero.data_type != TensorProto.UINT8:
        return None
    columns = int(weight.dims[1])
    if not _is_one(zero) or not _is_one(index.initializers.get(left.input[1]), TensorProto.FLOAT):
        return None
    parameters = [index.initializers.get(name) for name in right.input[1:] if name]
    if parameters[0] is None or parameters[0].data_type != TensorProto.FLOAT:
        return None
    per_column = attribute(right, "axis", 1) in (1, -1) and not attribute(right, "block_size", 0)
    if not all(_is_one(entry) or (per_column and _is_vector(entry, columns)) for entry in parameters):
        return None
    weight_zero = right.input[2] if len(right.input) > 2 else ""
    inputs = (left.input[0], right.input[0], left.input[1], right.input[1], left.input[2], weight_zero)
    return _Operands(inputs, columns)


def _is_one(tensor: onnx.TensorProto | None, kind: int | None = None) -> bool:
    return tensor is not None and list(tensor.dims) in ([], [1]) and kind in (None, tensor.data_type)


def _is_vector(tensor: onnx.TensorProto | None, length: int) -> bool:
    return tensor is not None and list(tensor.dims) == [length]


def _drop_unread_dequantizations(graph: onnx.GraphProto) -> None:
    read = read_tensors(graph)
    for place in reversed(range(len(graph.node))):
        node = graph.node[place]
        if node.op_type == "DequantizeLinear" and node.output[0] not in read:
            del graph.node[place]
