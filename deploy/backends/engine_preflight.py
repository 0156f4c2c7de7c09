"""What TensorRT refuses or runs slowly, found in the graph before any parser sees it, and told by node.

Refused: 8 bits that are not symmetric int8 or FP8, dynamic quantization and integer operators, operators outside the standard,
operators whose float inputs differ in type, a range of shapes that is missing or is one token long.
Warned of: linear layers left in float32 in a float16 graph, those that nobody excluded and that are float in a quantized
graph, and a quantized graph that is float32 beside its integers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx

from deploy.backends.base import IDS_NAME
from deploy.graphs.graph_info import METADATA_KEY, GraphInfo
from deploy.graphs.profiles import profile_named
from deploy.graphs.shapes import Shapes, check_profile, joined_sizes
from deploy.graphs.tensor_types import FLOATS, has_float8, tensor_types
from deploy.quantization.lint_rules.linear_layers import left_in_float
from deploy.quantization.lint_rules.operators import standard_operators
from deploy.quantization.lint_rules.parameters import element_types, zero_points
from deploy.quantization.qdq_view import QdqView
from deploy.quantization.site_selection import RecordedChoice

_ONE_TYPE = frozenset({"Add", "Sub", "Mul", "Div", "Pow", "MatMul", "Gemm", "Conv", "Concat", "Max", "Min", "Where"})
"""Operators whose float inputs must be of one type (ONNX operator reference)."""
_RULES = (standard_operators, element_types, zero_points)


def check_graph(structure: onnx.ModelProto, *, name: str) -> list[str]:
    """Refuse a graph that no TensorRT takes.

    Args:
        structure: the graph; weights in other files are not needed.
        name: for messages.

    Returns:
        Warnings, each naming a node: what will be built, but slower than it could be.

    Raises:
        ValueError: names the first node in the way, says why, and what to do.
    """
    profile = profile_named("fp8" if has_float8(structure) else "tensorrt")
    view = QdqView(structure, profile, recorded=RecordedChoice.read(structure))
    for rule in _RULES:
        for finding in rule(view):
            raise ValueError(f"{name}: node '{finding.node}': {finding.message}; {finding.advice}")
    types = tensor_types(structure)
    for node in structure.graph.node:
        kinds = {FLOATS[types[tensor]] for tensor in node.input if types.get(tensor) in FLOATS}
        if node.op_type in _ONE_TYPE and len(kinds) > 1:
            raise ValueError(
                f"{name}: node '{node.name or node.output[0]}', operator {node.op_type}: its inputs are "
                f"{' and '.join(sorted(kinds))}, and a strongly typed network converts nothing; put a Cast between them"
            )
    forgotten = [
        f"node '{found.node}': {found.message} beside quantized ones; {found.advice}" for found in left_in_float(view)
    ]
    return [*_slow_parts(view, types), *(forgotten if view.quantizers() else [])]


def _slow_parts(view: QdqView, types: Mapping[str, int]) -> list[str]:
    kinds = {linear.node.name: types.get(view.node(linear.node.output[0]).input[0]) for linear in view.linears}
    slow = [node for node, kind in kinds.items() if kind == onnx.TensorProto.FLOAT]
    if not slow:
        return []
    if onnx.TensorProto.FLOAT16 in kinds.values():
        return [f"node '{node}' is float32 in a float16 graph: it runs at a fraction of the speed" for node in slow]
    if view.quantizers():
        layers = f"node '{slow[0]}' and {len(slow) - 1} more linear layers"
        return [f"{layers} are float32 beside their integers: export with --dtype float16 for a GPU"]
    return []


def check_shape_range(
    structure: onnx.ModelProto,
    sizes: Mapping[str, Sequence[int | str]],
    *,
    smallest: Shapes | None,
    usual: Shapes | None,
    largest: Shapes | None,
    name: str,
) -> bool:
    """Refuse a range of shapes that does not fit the graph, or that makes an engine of no use.

    Args:
        structure: the graph.
        sizes: of each of its inputs, a name where a size is free.
        smallest: least sizes; may be left out with the other two where every size is fixed.
        usual: sizes to be fastest at.
        largest: greatest sizes.
        name: of the graph, for messages.

    Returns:
        Whether a range is needed.

    Raises:
        ValueError: names the input.
    """
    free = [key for key, shape in sizes.items() if any(isinstance(size, str) for size in shape)]
    if smallest is None or usual is None or largest is None:
        if free:
            shape = joined_sizes(sizes[free[0]])
            raise ValueError(
                f"{name}: input '{free[0]}' ({shape}) has free sizes; give its min, opt and max shapes, for example "
                "1x1, 1x128 and 8x512"
            )
        return False
    check_profile(sizes, smallest=smallest, usual=usual, largest=largest)
    for key in free:
        free_sizes = [size for size, known in zip(usual[key], sizes[key], strict=True) if isinstance(known, str)]
        if len(free_sizes) > 1 and set(free_sizes) == {1}:
            raise ValueError(
                f"{name}: opt shape of input '{key}' is {'x'.join(map(str, usual[key]))}: the engine would be tuned "
                "for one token; give the sizes that it will serve, for example 1x128"
            )
    _check_positions(structure, largest, name=name)
    return bool(free)


def _check_positions(structure: onnx.ModelProto, largest: Shapes, *, name: str) -> None:
    """The builder does not see that longer rows would read on behind the table of positions."""
    if IDS_NAME not in largest or not any(entry.key == METADATA_KEY for entry in structure.metadata_props):
        return
    positions = GraphInfo.read(structure, name=name).max_length
    if largest[IDS_NAME][-1] > positions:
        raise ValueError(
            f"max shape {'x'.join(map(str, largest[IDS_NAME]))}: length {largest[IDS_NAME][-1]} is above the "
            f"{positions} positions of {name}"
        )
