"""A graph of another tool in the form that the rest of this project reads, or a clear answer why it cannot be.

Functions are written out, constants are folded, names made distinct, dropouts that do nothing removed. What is computed
does not change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import onnx
import onnx.inliner

from deploy.graphs.constant_folding import fold_constants
from deploy.graphs.graph_index import GraphIndex
from deploy.graphs.graph_patterns import find_linears
from deploy.graphs.tensor_types import shaped_outputs
from deploy.graphs.unread_constants import drop_unread_constants

LOWEST_OPSET, HIGHEST_OPSET = 13, 23
"""Operator sets whose graphs are taken."""
_STANDARD = ("", "ai.onnx")
_INTEGER_OPERATORS = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "ConvInteger")


def normalise(model: onnx.ModelProto, *, name: str, rename: Mapping[str, str] | None = None) -> dict[str, int]:
    """Bring a foreign graph into form, in place.

    Args:
        model: with its weights.
        name: of the graph, for messages.
        rename: new names of inputs and outputs.

    Returns:
        How often each change was made, by what it is.

    Raises:
        ValueError: an operator set that is not read, operators that are not standard, a graph that holds integers
            already, that drops values at random, that computes in another type than float32, or that has nothing to
            quantize.
    """
    if model.functions:
        model.CopyFrom(onnx.inliner.inline_local_functions(model))
    _refuse_opset(model, name=name)
    _refuse_operators(model, name=name)
    changes = Counter({"inputs that were initializers": _drop_inputs_with_values(model.graph)})
    changes["inputs and outputs renamed"] = _rename(model.graph, rename or {}, name=name)
    changes["constants folded"] = fold_constants(model)
    changes["dropouts removed"] = _drop_dropouts(model.graph, name=name)
    changes["nodes renamed"] = _name_nodes(model.graph)
    drop_unread_constants(model.graph)
    _shape_outputs(model)
    for tensor in model.graph.initializer:
        if not tensor.raw_data:  # one way of storing, which writing large graphs relies on
            tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor), tensor.name))
    _refuse_types(model, name=name)
    return {what: count for what, count in changes.items() if count}


def _refuse_opset(model: onnx.ModelProto, *, name: str) -> None:
    opset = max((entry.version for entry in model.opset_import if entry.domain in _STANDARD), default=0)
    if not LOWEST_OPSET <= opset <= HIGHEST_OPSET:
        raise ValueError(
            f"{name} has opset {opset}; expected {LOWEST_OPSET} to {HIGHEST_OPSET}: export it again, or convert it with "
            "onnx.version_converter"
        )


def _refuse_operators(model: onnx.ModelProto, *, name: str) -> None:
    integer = [
        node for node in model.graph.node if node.op_type in _INTEGER_OPERATORS or node.op_type.startswith("QLinear")
    ]
    if integer:
        kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(node.op_type for node in integer).items())
        raise ValueError(
            f"{name} is quantized already, at least in part ({kinds}); give the float graph it was made from"
        )
    for node in model.graph.node:
        if node.domain not in _STANDARD:
            raise ValueError(
                f"{name}: node '{node.name or node.output[0]}' is {node.domain}.{node.op_type}, which is not standard ONNX; "
                "export the graph without a runtime's own fusions"
            )


def _refuse_types(model: onnx.ModelProto, *, name: str) -> None:
    index = GraphIndex(model.graph)
    linears = find_linears(index)
    if not linears:
        raise ValueError(
            f"{name} has no linear layer: no MatMul, Gemm or Conv with a stored weight, so nothing in it can be quantized"
        )
    for linear in linears:
        if (kind := index.constant_type(linear.weight)) != onnx.TensorProto.FLOAT:
            stored = onnx.TensorProto.DataType.Name(kind).lower() if kind else "unknown"
            raise ValueError(
                f"{name}: weight '{linear.weight}' is {stored}; ranges are measured on the float32 graph: export that"
            )


def _drop_inputs_with_values(graph: onnx.GraphProto) -> int:
    stored = {tensor.name for tensor in graph.initializer}
    places = [place for place, value in enumerate(graph.input) if value.name in stored]
    for place in reversed(places):
        del graph.input[place]
    return len(places)


def _rename(graph: onnx.GraphProto, rename: Mapping[str, str], *, name: str) -> int:
    edge = [value.name for value in (*graph.input, *graph.output)]
    known = set(edge) | {tensor for node in graph.node for tensor in (*node.input, *node.output)}
    for old, new in rename.items():
        if old not in edge:
            raise ValueError(f"'{old}' is no input or output of {name}; it has {', '.join(edge)}")
        if new in known:
            raise ValueError(f"'{old}' cannot become '{new}': {name} has a tensor of that name")
    for value in (*graph.input, *graph.output, *graph.value_info):
        value.name = rename.get(value.name, value.name)
    _rename_in(graph, rename)
    return len(rename)


def _rename_in(graph: onnx.GraphProto, rename: Mapping[str, str]) -> None:
    for node in graph.node:
        node.input[:] = [rename.get(tensor, tensor) for tensor in node.input]
        node.output[:] = [rename.get(tensor, tensor) for tensor in node.output]
        for entry in node.attribute:
            for inner in [entry.g, *entry.graphs]:
                _rename_in(inner, rename)


def _drop_dropouts(graph: onnx.GraphProto, *, name: str) -> int:
    """Join what a dropout that lets everything through separates."""
    index = GraphIndex(graph)
    joined: dict[str, str] = {}
    for node in graph.node:
        if node.op_type != "Dropout":
            continue
        ratio = index.constant_value(node.input[1]) if len(node.input) > 1 and node.input[1] else 0.5
        training = len(node.input) > 2 and node.input[2] and bool(index.constant_value(node.input[2]))
        if training and ratio > 0:
            raise ValueError(
                f"{name}: node '{node.name or node.output[0]}' drops values at random; export the model in evaluation mode"
            )
        if len(node.output) < 2 or not index.uses(node.output[1]):
            joined[node.output[0]] = joined.get(node.input[0], node.input[0])
    outputs = {value.name for value in graph.output}
    gone = {made for made in joined if made not in outputs}
    kept = [node for node in graph.node if node.op_type != "Dropout" or node.output[0] not in gone]
    del graph.node[:]
    graph.node.extend(kept)
    _rename_in(graph, {made: source for made, source in joined.items() if made in gone})
    return len(gone)


def _name_nodes(graph: onnx.GraphProto) -> int:
    """Give every node a name of its own; returns how many changed."""
    counts = Counter(node.name for node in graph.node)
    taken = {name for name, count in counts.items() if count == 1}
    changed = 0
    for node in graph.node:
        if node.name and counts[node.name] == 1:
            continue
        wanted = node.name or f"{node.op_type}/{next(filter(None, node.output))}"
        name, number = wanted, 1
        while name in taken:
            number += 1
            name = f"{wanted}_{number}"
        changed += name != node.name
        node.name = name
        taken.add(name)
    return changed


def _shape_outputs(model: onnx.ModelProto) -> None:
    """Write down the shapes of outputs that have none, which the checker asks for."""
    if all(value.type.tensor_type.HasField("shape") for value in model.graph.output):
        return
    inferred = {value.name: value for value in shaped_outputs(model)}
    for value in model.graph.output:
        if not value.type.tensor_type.HasField("shape") and value.name in inferred:
            value.CopyFrom(inferred[value.name])
