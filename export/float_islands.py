"""Which nodes of a float32 graph stay in float32 when the rest becomes float16. By operator and data flow, never by name.

An island begins at an operator of :data:`SUMS` or :data:`CURVES`, at numbers that float16 cannot hold (positions and counts,
graph inputs, tiny constants), or at an operator that has no float16 form. It grows

- forwards, over operators that only rearrange values or work on each of them, when all they read is in the island, so that
  an island ends in one place (``Softmax -> Sub -> Relu``) and its border costs one Cast;
- forwards, over those that read a statistic (mean, variance, norm, sum), whose other operand is then read in float32 too;
- backwards from :data:`SENSITIVE` operators, over what serves them alone: the mask and its sum with the scores below a
  softmax, the angles below a sine. A residual sum, which feeds the next sum as well, stays in float16.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir

SUMS = frozenset(
    {
        "LayerNormalization",
        "RMSNormalization",
        "GroupNormalization",
        "InstanceNormalization",
        "BatchNormalization",
        "LpNormalization",
        "Softmax",
        "LogSoftmax",
        "ReduceSum",
        "ReduceMean",
        "ReduceSumSquare",
        "ReduceL1",
        "ReduceL2",
        "ReduceLogSumExp",
        "ReduceProd",
        "GlobalAveragePool",
        "CumSum",
    }
)
"""Operators that add up many numbers: the sum loses digits, or leaves the range of float16."""
CURVES = frozenset({"Exp", "Log", "Pow", "Sqrt", "Reciprocal", "Sin", "Cos"})
"""Functions that leave the range of float16, or that need more digits of their argument than it has."""
SENSITIVE = frozenset({"Softmax", "LogSoftmax", "Exp", "Sin", "Cos"})
"""Operators whose argument is made in float32 as well, as far as nothing else needs it."""
_ANGLES = frozenset({"Sin", "Cos"})
_CONVERSIONS = frozenset({"Cast", "ConstantOfShape", "Constant", "EyeLike", "Range", "RandomNormal", "RandomUniform"})
"""Operators that name the type of their result themselves."""
_MOVES = frozenset(
    {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Identity", "Flatten", "Expand", "Slice", "Split", "Concat", "Pad"}
    | {"Gather", "GatherElements", "GatherND", "Tile"}
)
_ELEMENTWISE = frozenset(
    {"Add", "Sub", "Mul", "Div", "Neg", "Abs", "Min", "Max", "Clip", "Where", "Relu", "Sigmoid", "Tanh", "Erf"}
)
_STATISTICS = frozenset(
    {"ReduceSum", "ReduceMean", "ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceMax", "ReduceMin"}
)
_CHEAP = _MOVES | _ELEMENTWISE | CURVES
SMALLEST_HALF = float(np.finfo(np.float16).smallest_subnormal)
"""Constants below it become 0 in float16."""


def is_float(value: ir.Value | None) -> bool:
    """Whether a value is float32."""
    return value is not None and value.dtype == ir.DataType.FLOAT


def is_constant(value: ir.Value) -> bool:
    """Whether a value is stored in the graph."""
    return value.const_value is not None


def can_be_half(node: ir.Node, slot: int, opset: int) -> bool:
    """Whether the operator's definition lets this input be float16 (the scales of ``Resize`` may not)."""
    formal = onnx.defs.get_schema(node.op_type, opset, node.domain).inputs
    return "tensor(float16)" in formal[min(slot, len(formal) - 1)].types


@dataclass(frozen=True, kw_only=True, slots=True)
class Islands:
    """The nodes of one graph that stay in float32."""

    nodes: set[ir.Node]
    opset: int
    """That the graph declares."""

    def half_uses(self, value: ir.Value) -> list[tuple[ir.Node, int]]:
        """Readers of a value that take it in float16, each with the place among its inputs."""
        return [(node, slot) for node, slot in value.uses() if self._takes_half(node, slot)]

    def float_uses(self, value: ir.Value) -> list[tuple[ir.Node, int]]:
        """Readers of a value that take it in float32."""
        return [(node, slot) for node, slot in value.uses() if not self._takes_half(node, slot)]

    def _takes_half(self, node: ir.Node, slot: int) -> bool:
        return node not in self.nodes and can_be_half(node, slot, self.opset)


def find_islands(graph: ir.Graph, *, opset: int) -> Islands:
    """Decide for every node.

    Args:
        graph: float32, constants as initializers, the type of every value known.
        opset: that the graph declares.
    """
    floats = [node for node in graph if any(map(is_float, (*node.inputs, *node.outputs)))]
    island = {node for node in floats if _begins(node, opset)}
    statistics: set[ir.Value] = set()
    inputs = set(graph.inputs)
    size = -1
    while size != len(island):
        size = len(island)
        for node in floats:
            if node not in island and _joins_forwards(node, island, statistics, inputs):
                island.add(node)
            if node in island and _makes_statistics(node, statistics):
                statistics.update(node.outputs)
        _grow_backwards(floats, island)
    return Islands(nodes=island, opset=opset)


def _begins(node: ir.Node, opset: int) -> bool:
    if node.op_type in SUMS | CURVES:
        return True
    if node.op_type in _CONVERSIONS and any(map(is_float, node.outputs)):
        return True
    data = [slot for slot, value in enumerate(node.inputs) if is_float(value)]
    if data and not any(can_be_half(node, slot, opset) for slot in data):
        return True
    return any(value is not None and _vanishes(value) for value in node.inputs)


def _vanishes(value: ir.Value) -> bool:
    """Whether a stored scalar is lost in float16: not 0 and smaller than its smallest number."""
    tensor = value.const_value
    if tensor is None or not is_float(value) or tensor.size != 1:
        return False
    return 0.0 < abs(float(tensor.numpy().item())) < SMALLEST_HALF


def _computed(node: ir.Node) -> list[ir.Value]:
    """Float inputs that are not stored in the graph."""
    return [value for value in node.inputs if value is not None and is_float(value) and not is_constant(value)]


def _joins_forwards(
    node: ir.Node, island: set[ir.Node], statistics: set[ir.Value], graph_inputs: set[ir.Value]
) -> bool:
    computed = _computed(node)
    decides_nothing = not any(map(is_float, node.outputs))
    if not computed or not (node.op_type in _CHEAP or decides_nothing):
        return False
    if not statistics.isdisjoint(computed):
        return True
    return all(value in graph_inputs or value.producer() in island for value in computed)


def _makes_statistics(node: ir.Node, statistics: set[ir.Value]) -> bool:
    if node.op_type in _STATISTICS:
        return True
    return node.op_type in _CHEAP and bool(computed := _computed(node)) and statistics.issuperset(computed)


def _grow_backwards(floats: Sequence[ir.Node], island: set[ir.Node]) -> None:
    """From sensitive operators; a node that joins is as sensitive as its readers."""
    sensitive = {node: node.op_type in _ANGLES for node in floats if node.op_type in SENSITIVE}
    for node in reversed(floats):
        readers = [use.node for value in node.outputs for use in value.uses()]
        if node in sensitive or not readers or not all(reader in sensitive for reader in readers):
            continue
        if any(value.is_graph_output() for value in node.outputs):
            continue
        below_angles = all(sensitive[reader] for reader in readers)
        if node.op_type in _CHEAP or node in island or below_angles:
            sensitive[node] = below_angles
            island.add(node)
