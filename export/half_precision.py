"""A float32 graph rewritten in float16, strongly typed, with float32 islands (:mod:`export.float_islands`).

Every weight and activation outside of the islands is float16; the interface of the graph stays as it was. A Cast stands at
the border of an island and nowhere else, one per tensor. What is float16 keeps its name, so that ranges, exclusions and
reports of the float32 graph fit; the float32 form of the same tensor is called ``<name>/float32`` (but an output of the
graph keeps its name in float32, and its float16 form is ``<name>/float16``).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir

from deploy.graphs.graph_info import GraphInfo
from export.float_islands import Islands, find_islands, is_float
from export.graph_files import to_proto, written_sha256

LARGEST_HALF = float(np.finfo(np.float16).max)
"""65,504."""
HALF_SUFFIX = "/float16"
FLOAT_SUFFIX = "/float32"


def half_graph(proto: onnx.ModelProto, info: GraphInfo) -> onnx.ModelProto:
    """The float16 form of a finished float32 graph, which carries the hash of that one.

    Args:
        proto: float32, as it would be written; large weights may leave the message when it is hashed.
        info: its metadata.

    Raises:
        ValueError: see :func:`make_half`.
    """
    model = ir.from_proto(proto)
    make_half(model)
    half = to_proto(model)
    replace(info, dtype="float16", float32_sha256=written_sha256(proto)).write(half)
    return half


def make_half(model: ir.Model) -> None:
    """Rewrite ``model`` in place.

    Args:
        model: float32, constants as initializers, the type of every value known.

    Raises:
        ValueError: the graph is quantized or has subgraphs, or a weight does not fit into float16 (named).
    """
    graph = model.graph
    for node in graph:
        _refuse(node)
    islands = find_islands(graph, opset=model.opset_imports[""])
    for node in graph:
        _convert_at_once(node, islands)
    for value in list(graph.initializers.values()):
        if is_float(value):
            _convert_constant(graph, value, islands)
    for value in [*graph.inputs, *(output for node in graph for output in node.outputs)]:
        if is_float(value):
            _give_type(graph, value, islands)
    graph.sort()


def _refuse(node: ir.Node) -> None:
    if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
        raise ValueError("the graph is quantized; make the float16 graph from the float one and quantize that")
    if any(entry.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for entry in node.attributes.values()):
        raise ValueError(f"node '{node.name}' ({node.op_type}) holds graphs of its own, which cannot become float16")


def _convert_at_once(node: ir.Node, islands: Islands) -> None:
    """``Cast`` of integers whose result is only read in float16 makes float16, so that no pair of Casts is left."""
    if node.op_type != "Cast" or node not in islands.nodes:
        return
    output = node.outputs[0]
    if is_float(output) and not output.is_graph_output() and not islands.float_uses(output):
        node.attributes["to"] = ir.AttrInt64("to", ir.DataType.FLOAT16)
        islands.nodes.discard(node)


def _convert_constant(graph: ir.Graph, value: ir.Value, islands: Islands) -> None:
    uses = islands.half_uses(value)
    if not uses:
        return
    name, tensor = value.name, value.const_value
    assert name is not None
    assert tensor is not None
    half = ir.Value(
        name=name,
        shape=value.shape,
        type=ir.TensorType(ir.DataType.FLOAT16),
        const_value=ir.tensor(_as_half(tensor.numpy(), name), name=name),
    )
    del graph.initializers[name]
    if islands.float_uses(value):
        value.name = tensor.name = f"{name}{FLOAT_SUFFIX}"
        graph.register_initializer(value)
    graph.register_initializer(half)
    _redirect(uses, half)


def _as_half(array: np.ndarray, name: str) -> np.ndarray:
    """Rounded to float16. A single number that is too large (a mask's, a clip's bound) becomes the largest one."""
    if array.size == 1:
        array = np.clip(array, -LARGEST_HALF, LARGEST_HALF)
    largest = float(np.max(np.abs(array), initial=0.0))
    if not largest <= LARGEST_HALF:  # NaN included
        raise ValueError(f"weight '{name}' reaches {largest:.6g}, which float16 (up to {LARGEST_HALF:.0f}) cannot hold")
    half: np.ndarray = array.astype(np.float16)
    return half


def _give_type(graph: ir.Graph, value: ir.Value, islands: Islands) -> None:
    """Give ``value`` the type its maker has now, and one Cast if somebody reads it in the other type."""
    maker = value.producer()
    if maker is None or maker in islands.nodes:
        if uses := islands.half_uses(value):
            keeps_name = maker is None or value.is_graph_output()
            half = _cast(graph, value, ir.DataType.FLOAT16)
            _redirect(uses, half)
            _name_pair(half, value, float_keeps_name=keeps_name)
        return
    value.dtype = ir.DataType.FLOAT16
    uses, is_output = islands.float_uses(value), value.is_graph_output()
    if uses or is_output:
        single = _cast(graph, value, ir.DataType.FLOAT)
        _redirect(uses, single)
        for place, output in enumerate(graph.outputs):
            if output is value:
                graph.outputs[place] = single
        _name_pair(value, single, float_keeps_name=is_output)


def _cast(graph: ir.Graph, value: ir.Value, to: ir.DataType) -> ir.Value:
    node = ir.node("Cast", [value], {"to": to}, name=f"{value.name}/Cast")
    result = node.outputs[0]
    result.name, result.type, result.shape = value.name, ir.TensorType(to), value.shape
    maker = value.producer()
    if maker is None:
        graph.insert_before(graph[0], node)
    else:
        graph.insert_after(maker, node)
    return result


def _redirect(uses: list[tuple[ir.Node, int]], value: ir.Value) -> None:
    for node, slot in uses:
        node.replace_input_with(slot, value)


def _name_pair(half: ir.Value, single: ir.Value, *, float_keeps_name: bool) -> None:
    """Both are called as the tensor was in the float32 graph; give one of them a suffix."""
    if float_keeps_name:
        half.name = f"{half.name}{HALF_SUFFIX}"
    else:
        single.name = f"{single.name}{FLOAT_SUFFIX}"
