"""Graph passes from the exporter's raw trace to a graph of the operators that matter.

Each pass edits the model in place and states its rewrite. Nothing here knows attention or a family.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes import common

from export.operator_forms import unify, write_gemm_as_matmul

try:
    from onnxscript import optimizer
except ImportError as error:
    raise ImportError("the export needs onnxscript; pip install 'quietformer[export]'") from error

PARAMETER = "quietformer.parameter"
"""Key in a value's ``meta``: the path of the parameter or buffer it holds. Constants of the trace have none."""


def clean_up(model: ir.Model) -> None:
    """Run every pass of this module, merge equal computations and drop what nothing reads."""
    for value in model.graph.initializers.values():
        value.meta[PARAMETER] = value.name
    write_gemm_as_matmul(model)
    store_transposed_weights(model)
    make_reshapes_constant(model)
    optimizer.fold_constants(model, should_fold=_should_fold)
    drop_useless_reshapes(model)
    ir.passes.Sequential(
        common.IdentityEliminationPass(),
        common.CommonSubexpressionEliminationPass(),
        common.RemoveUnusedNodesPass(),
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.RemoveUnusedNodesPass(),
    )(model)
    unify(model)
    common.RemoveUnusedNodesPass()(model)
    give_each_node_its_constants(model)


def _should_fold(node: ir.Node) -> bool | None:
    """Leave embedding tables alone: lookups whose indices a static length makes constant, and the tied head's Transpose."""
    source = node.inputs[0] if node.op_type == "Transpose" else None
    if source is not None and is_table(source):
        return False
    table = node.inputs[0] if node.op_type == "Gather" else None
    if table is not None and PARAMETER in table.meta and table.shape is not None and table.shape[0] != 1:
        return False
    return None


def is_table(value: ir.Value) -> bool:
    """Whether rows of a stored matrix are looked up."""
    return value.const_value is not None and any(use.node.op_type == "Gather" and use.idx == 0 for use in value.uses())


def store_transposed_weights(model: ir.Model) -> None:
    """``Transpose(W)`` of an initializer becomes an initializer, so that every linear layer is ``MatMul(x, W) + b``.

    An embedding table that is tied to a language-model head stays one tensor: the head keeps its ``Transpose``, which
    runtimes make part of the product.
    """
    graph = model.graph
    transposed: dict[tuple[str, tuple[int, ...]], ir.Value] = {}
    for node in [node for node in graph if node.op_type == "Transpose"]:
        weight = node.inputs[0]
        if weight is None or weight.name not in graph.initializers or weight.const_value is None or is_table(weight):
            continue
        assert weight.name is not None
        order = tuple(node.attributes["perm"].as_ints())
        if (weight.name, order) not in transposed:
            array = np.ascontiguousarray(weight.const_value.numpy().transpose(order))
            value = _initializer(f"{weight.name}.T{order}", array)
            value.meta[PARAMETER] = weight.name
            graph.register_initializer(value)
            transposed[weight.name, order] = value
        node.outputs[0].replace_all_uses_with(transposed[weight.name, order])
        graph.remove(node, safe=True)


def make_reshapes_constant(model: ir.Model) -> None:
    """``Reshape(x, Concat(Shape(x)[0], …))`` becomes ``Reshape(x, [0, …])``.

    0 copies the dimension at the same place of the input; at most one other unknown dimension is -1. Reshapes that need
    more keep their computed shape.
    """
    for node in [node for node in model.graph if node.op_type == "Reshape"]:
        before, after = node.inputs[0], node.outputs[0]
        target = _constant_target(before.shape if before is not None else None, after.shape)
        if target is None:
            continue
        value = _initializer(f"{after.name}.shape", np.array(target, dtype=np.int64))
        model.graph.register_initializer(value)
        node.replace_input_with(1, value)
        node.attributes.pop("allowzero", None)


def _constant_target(before: ir.Shape | None, after: ir.Shape | None) -> list[int] | None:
    if before is None or after is None:
        return None
    target: list[int] = []
    for place, dim in enumerate(after):
        if isinstance(dim, int):
            target.append(dim)
        elif place < len(before) and dim.value is not None and before[place] == dim:
            target.append(0)
        else:
            target.append(-1)
    return target if target.count(-1) <= 1 else None


def drop_useless_reshapes(model: ir.Model) -> None:
    """``Reshape(Squeeze(x), [-1])`` of a vector x of one element, and a ``Slice`` or ``Reshape`` that keeps everything, become x."""
    for node in list(model.graph):
        source = node.inputs[0] if node.inputs else None
        if source is None:
            continue
        if node.op_type == "Reshape" and (squeeze := source.producer()) is not None and squeeze.op_type == "Squeeze":
            vector = squeeze.inputs[0]
            assert vector is not None
            shape_node = vector.producer()
            one_dim = shape_node is not None and shape_node.op_type == "Shape" and _spans_one_dim(shape_node)
            target = ir.convenience.get_const_tensor(node.inputs[1]) if node.inputs[1] is not None else None
            if one_dim and target is not None and target.numpy().tolist() == [-1]:
                node.outputs[0].replace_all_uses_with(vector)
        elif node.op_type in ("Slice", "Reshape") and _keeps_everything(node):
            node.outputs[0].replace_all_uses_with(source)


def _keeps_everything(node: ir.Node) -> bool:
    """Whether a ``Slice`` forwards or a ``Reshape`` has the shape of its input, every dimension known by number or name."""
    source, output = node.inputs[0], node.outputs[0]
    steps = node.inputs[4] if node.op_type == "Slice" and len(node.inputs) > 4 else None
    tensor = ir.convenience.get_const_tensor(steps) if steps is not None else None
    if steps is not None and (tensor is None or (tensor.numpy() != 1).any()):
        return False
    if source is None or source.shape is None or source.shape != output.shape:
        return False
    return all(isinstance(dim, int) or dim.value is not None for dim in source.shape)


def _spans_one_dim(shape_node: ir.Node) -> bool:
    start, end = shape_node.attributes.get_int("start", 0), shape_node.attributes.get_int("end", None)
    return end is not None and end - start == 1


def give_each_node_its_constants(model: ir.Model) -> None:
    """A lifted constant that several nodes read is copied, so that each can be named after its reader."""
    graph = model.graph
    for value in [value for value in graph.initializers.values() if PARAMETER not in value.meta]:
        for use in list(value.uses())[1:]:
            assert value.const_value is not None
            own = _initializer(f"{value.name}#{len(graph.initializers)}", value.const_value.numpy())
            graph.register_initializer(own)
            use.node.replace_input_with(use.idx, own)


def lower_opset(model: ir.Model, opset: int) -> None:
    """Declare an older opset, where every operator of the graph means the same in it.

    Raises:
        ValueError: an operator changed in between.
    """
    current = model.opset_imports[""]
    for node in model.graph:
        if not _same_operator(node, opset, current):
            raise ValueError(f"opset {opset} has no {node.op_type} as this model needs it; use opset {current}")
    model.opset_imports[""] = opset


def _same_operator(node: ir.Node, older: int, newer: int) -> bool:
    try:
        versions = [onnx.defs.get_schema(node.op_type, opset, "").since_version for opset in (older, newer)]
    except onnx.defs.SchemaError:
        return False
    # Pad of 18 differs by an optional fourth input.
    return versions[0] == versions[1] or (node.op_type == "Pad" and len(node.inputs) < 4)


def _initializer(name: str, array: np.ndarray) -> ir.Value:
    tensor = ir.tensor(array, name=name)
    return ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
