"""One form for each computation, so that runtimes, quantization and lint recognise it whatever the model's code looks like.

Passes on a cleaned trace, in place; each states its rewrite as algebra. Nothing here knows a family.
"""

from __future__ import annotations

import onnx_ir as ir

FIRST_RMS_OPSET = 23
"""Operator set from which RMSNorm is one operator; below it is ``x / sqrt(mean(x^2) + eps) * gain``."""


def unify(model: ir.Model) -> None:
    """Run the passes that a cleaned graph needs, all but :func:`write_gemm_as_matmul`."""
    drop_factors_of_one(model)
    divide_by_roots(model)
    if model.opset_imports[""] >= FIRST_RMS_OPSET:
        join_rms_norms(model)


def drop_factors_of_one(model: ir.Model) -> None:
    """``Mul(x, 1)`` becomes ``x``: what is left of a factor that was folded into a weight."""
    for node in [node for node in model.graph if node.op_type == "Mul"]:
        for factor, kept in (node.inputs, reversed(node.inputs)):
            assert kept is not None
            if _number(factor) == 1.0 and kept.shape is not None and kept.shape == node.outputs[0].shape:
                _replace(model.graph, node, kept)
                break


def write_gemm_as_matmul(model: ir.Model) -> None:
    """``Gemm(x, W, b)`` becomes ``Add(MatMul(x, W), b)``, with ``Transpose(W)`` where the operator transposes it.

    So every linear layer looks alike and has its bias outside of the product. On a raw trace: transposed weights are
    stored later.
    """
    for node in [node for node in model.graph if node.op_type == "Gemm"]:
        data, weight, *bias = node.inputs
        plain = all(node.attributes.get_float(name, 1.0) == 1.0 for name in ("alpha", "beta"))
        if not plain or weight is None or weight.shape is None or node.attributes.get_int("transA", 0) != 0:
            continue
        if node.attributes.get_int("transB", 0) != 0:
            weight = _insert(model.graph, node, "Transpose", [weight], {"perm": [1, 0]})
            weight.shape = ir.Shape(list(node.inputs[1].shape)[::-1])  # type: ignore[union-attr, arg-type]
        result = _insert(model.graph, node, "MatMul", [data, weight])
        if bias and bias[0] is not None:
            result = _insert(model.graph, node, "Add", [result, bias[0]])
        _replace(model.graph, node, result)


def divide_by_roots(model: ir.Model) -> None:
    """``Mul(x, Reciprocal(Sqrt(v)))`` becomes ``Div(x, Sqrt(v))``, the form of a norm that runtimes know."""
    for node in [node for node in model.graph if node.op_type == "Mul"]:
        for factor, other in (node.inputs, reversed(node.inputs)):
            reciprocal = factor.producer() if factor is not None else None
            if reciprocal is None or reciprocal.op_type != "Reciprocal":
                continue
            root = reciprocal.inputs[0]
            if root is not None and (maker := root.producer()) is not None and maker.op_type == "Sqrt":
                _replace(model.graph, node, _insert(model.graph, node, "Div", [other, root]))
                if not reciprocal.outputs[0].uses():
                    model.graph.remove(reciprocal, safe=True)
                break


def join_rms_norms(model: ir.Model) -> None:
    """``Mul(x / sqrt(mean(x^2) + eps), gain)`` over the last axis becomes ``RMSNormalization(x, gain)``."""
    for node in [node for node in model.graph if node.op_type == "Mul"]:
        for gain, normalised in (node.inputs, reversed(node.inputs)):
            source_and_epsilon = _rms_of(normalised)
            if gain is None or gain.shape is None or len(gain.shape) != 1 or source_and_epsilon is None:
                continue
            source, epsilon = source_and_epsilon
            norm = _insert(model.graph, node, "RMSNormalization", [source, gain], {"axis": -1, "epsilon": epsilon})
            _replace(model.graph, node, norm)
            break
    _drop_unread(model.graph)


def _rms_of(normalised: ir.Value | None) -> tuple[ir.Value, float] | None:
    """Input and eps of ``x / sqrt(mean(x^2) + eps)``; None for anything else."""
    division = _made_by(normalised, "Div")
    root = _made_by(division.inputs[1], "Sqrt") if division else None
    total = _made_by(root.inputs[0], "Add") if root else None
    if division is None or total is None:
        return None
    source = division.inputs[0]
    for mean, epsilon in (total.inputs, reversed(total.inputs)):
        reduction, number = _made_by(mean, "ReduceMean"), _number(epsilon)
        if reduction is None or number is None or source is None or source.shape is None:
            continue
        power = _made_by(reduction.inputs[0], "Pow")
        is_last = _number(reduction.inputs[1] if len(reduction.inputs) > 1 else None) in (-1, len(source.shape) - 1)
        if is_last and power is not None and power.inputs[0] is source and _number(power.inputs[1]) == 2.0:
            return source, number
    return None


def _made_by(value: ir.Value | None, operator: str) -> ir.Node | None:
    node = value.producer() if value is not None else None
    return node if node is not None and node.op_type == operator else None


def _number(value: ir.Value | None) -> float | None:
    """The one number that a constant holds; None for anything else."""
    tensor = ir.convenience.get_const_tensor(value) if value is not None else None
    return float(tensor.numpy().reshape(())) if tensor is not None and tensor.size == 1 else None


def _insert(
    graph: ir.Graph,
    place: ir.Node,
    operator: str,
    inputs: list[ir.Value | None],
    attributes: dict[str, int | float | list[int]] | None = None,
) -> ir.Value:
    """A node before ``place``, of the same module and with an output of the same type and shape; returns that output."""
    node = ir.node(operator, inputs, attributes)
    node.metadata_props.update(place.metadata_props)
    output = node.outputs[0]
    output.type, output.shape = place.outputs[0].type, place.outputs[0].shape
    graph.insert_before(place, node)
    return output


def _replace(graph: ir.Graph, node: ir.Node, value: ir.Value) -> None:
    """Let the readers of a node, the graph's outputs among them, read ``value``; then drop the node."""
    old = node.outputs[0]
    if old.is_graph_output():
        value.name = old.name
    ir.convenience.replace_all_uses_with(old, value, replace_graph_outputs=True)
    graph.remove(node, safe=True)


def _drop_unread(graph: ir.Graph) -> None:
    for node in reversed(list(graph)):
        if not any(output.uses() or output.is_graph_output() for output in node.outputs):
            graph.remove(node, safe=True)
