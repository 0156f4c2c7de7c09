"""What a graph computes from constants alone, computed once: weights come out as stored tensors.

Foreign exports keep weights behind ``Constant``, ``Cast``, ``Mul``, ``Reshape`` or ``Split`` nodes. A transposed or renamed matrix stays
as it is written, since a tied embedding would be stored twice otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from deploy.graphs.graph_index import GraphIndex

_LARGEST_GROWTH = 8
"""A result this many times its inputs is left to the runtime: an expanded mask, a table of positions."""
_SMALL_BYTES = 1 << 16


def fold_constants(model: onnx.ModelProto) -> int:
    """Replace nodes that depend on no input by initializers, in place; returns how many nodes went.

    Every ``Constant`` becomes an initializer. What the reference evaluator cannot compute, or what would grow far beyond
    its inputs, stays.
    """
    graph = model.graph
    index = GraphIndex(graph)
    values: dict[str, np.ndarray[Any, Any]] = {}
    folded: list[onnx.NodeProto] = []
    for node in graph.node:
        if not all(index.is_constant(name) for name in node.output if name) or _is_view_of_matrix(index, node):
            continue
        results = _computed(model, index, node, values)
        if results is not None:
            values.update(zip(node.output, results, strict=False))
            folded.append(node)
    gone = {node.output[0] for node in folded}
    kept = [node for node in graph.node if node.output[0] not in gone]
    read = {name for node in kept for name in (*node.input, *index.inner_reads(node))}
    read |= {value.name for value in graph.output}
    del graph.node[:]
    graph.node.extend(kept)
    graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in values.items() if name in read
    )
    return len(folded)


def _is_view_of_matrix(index: GraphIndex, node: onnx.NodeProto) -> bool:
    return node.op_type in ("Transpose", "Identity") and len(index.constant_shape(node.output[0]) or ()) == 2


def _computed(
    model: onnx.ModelProto, index: GraphIndex, node: onnx.NodeProto, values: dict[str, np.ndarray[Any, Any]]
) -> Sequence[np.ndarray[Any, Any]] | None:
    inputs: dict[str, np.ndarray[Any, Any]] = {}
    for name in (*node.input, *index.inner_reads(node)):
        if not name:
            continue
        if name in values:
            inputs[name] = values[name]
        elif index.constant_shape(name) is not None:
            inputs[name] = index.constant_value(name)
        else:
            return None  # made by a node that stayed
    alone = onnx.helper.make_graph(
        [node],
        "constant",
        [onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape) for name, array in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in node.output if name],
    )  # fmt: skip
    try:
        results = ReferenceEvaluator(onnx.helper.make_model(alone, opset_imports=model.opset_import)).run(None, inputs)
    except Exception:  # an operator that the evaluator lacks stays in the graph
        return None
    if not all(isinstance(result, np.ndarray | np.generic) for result in results):
        return None
    size = sum(np.asarray(result).nbytes for result in results)
    if node.op_type != "Constant" and size > max(
        _SMALL_BYTES, _LARGEST_GROWTH * sum(array.nbytes for array in inputs.values())
    ):
        return None
    return [np.asarray(result) for result in results]
