"""In which precision each matrix product of a Q/DQ graph runs, as far as the graph decides it.

A product runs in integers when all its operands come out of a DequantizeLinear; what a runtime makes of it is read
from that runtime.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from deploy.graphs.graph_index import GraphIndex
from deploy.graphs.tensor_types import element_name

_PRODUCTS = ("MatMul", "Gemm", "Conv")


@dataclass(frozen=True, kw_only=True, slots=True)
class OpPrecision:
    """One matrix product."""

    node: str
    op_type: str
    precision: str
    """``uint8 x int8`` (first operand, second operand), ``float8 x float8``, or ``float``."""


def op_precisions(model: onnx.ModelProto) -> list[OpPrecision]:
    """Every matrix product of a graph, in graph order."""
    index = GraphIndex(model.graph)
    return [
        OpPrecision(node=node.name or node.output[0], op_type=node.op_type, precision=_precision(index, node))
        for node in index.nodes
        if node.op_type in _PRODUCTS
    ]


def _precision(index: GraphIndex, node: onnx.NodeProto) -> str:
    operands = [integer_type(index, name) for name in node.input[:2]]
    known = [operand for operand in operands if operand is not None]
    return " x ".join(known) if len(known) == len(operands) else "float"


def integer_type(index: GraphIndex, tensor: str) -> str | None:
    """``int8``, ``uint8`` or ``float8`` when ``tensor`` comes out of a DequantizeLinear (through reordering), else None."""
    node = index.producer(index.before_moves(tensor))
    if node is None or node.op_type != "DequantizeLinear":
        return None
    source = index.producer(index.before_moves(node.input[0]))
    stored = index.initializers.get(node.input[0])
    if stored is not None:
        return element_name(stored.data_type)
    zero_point = (source or node).input[2:3]
    if zero_point and zero_point[0] in index.initializers:
        return element_name(index.initializers[zero_point[0]].data_type)
    return "uint8"
