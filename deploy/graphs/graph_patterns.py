"""Linear layers, embeddings, residual sums and activation functions of an ONNX graph, found by structure, never by name.

Legend: K input features, N output features of a linear layer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import onnx

from deploy.graphs.graph_index import GraphIndex, attribute

ACTIVATIONS = frozenset({"Gelu", "Relu", "Tanh", "Sigmoid", "Swish"})
"""Functions that one integer kernel applies after a linear layer: nothing is quantized between the two."""


_INTEGERS = frozenset(
    getattr(onnx.TensorProto, name)
    for name in ("INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32", "INT64", "UINT64", "BOOL")
)
_POINTWISE = frozenset({"Mul", "Add", "Sub", "Div", "Pow", "Erf", "Tanh", "Sigmoid", "Neg", "Exp", "Reciprocal"})
_CURVES = frozenset({"Erf", "Tanh", "Sigmoid", "Exp"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Linear:
    """``MatMul(x, W) [+ bias]``, ``Gemm`` or the patch convolution, with a constant weight."""

    node: onnx.NodeProto
    input: str
    weight: str
    """The weight as it enters the node."""
    output: str
    """After the bias."""
    in_features: int
    out_features: int
    output_axis: int
    """Axis of N in ``weight``."""


def find_linears(index: GraphIndex) -> list[Linear]:
    """Every linear layer of the graph, in graph order."""
    return [linear for node in index.nodes if (linear := _as_linear(index, node)) is not None]


def _as_linear(index: GraphIndex, node: onnx.NodeProto) -> Linear | None:
    if node.op_type not in ("MatMul", "Gemm", "Conv"):
        return None
    data, weight = node.input[:2]
    sizes = index.constant_shape(weight)
    if index.is_constant(data) or sizes is None or index.constant_type(weight) in _INTEGERS:
        return None
    if node.op_type == "Conv":
        output_axis, in_features = 0, math.prod(sizes[1:])
    elif len(sizes) == 2 and not (node.op_type == "Gemm" and attribute(node, "transA", 0)):
        output_axis = 0 if node.op_type == "Gemm" and attribute(node, "transB", 0) else 1
        in_features = sizes[1 - output_axis]
    else:
        return None
    return Linear(
        node=node,
        input=data,
        weight=weight,
        output=_after_bias(index, node),
        in_features=in_features,
        out_features=sizes[output_axis],
        output_axis=output_axis,
    )


def _after_bias(index: GraphIndex, node: onnx.NodeProto) -> str:
    use = index.only_use(node.output[0])
    if use is not None and use.node.op_type == "Add":
        other = use.node.input[1 - use.slot]
        shape = index.constant_shape(other)
        if shape is not None and len(shape) <= 1:
            return str(use.node.output[0])
    return str(node.output[0])


def activation_after(index: GraphIndex, tensor: str) -> str | None:
    """Output of the activation function that ``tensor`` goes into, None when it goes elsewhere.

    Also seen written out: ``GELU`` by erf or tanh, ``SiLU`` and ``x * sigmoid(1.702 x)``, in any association.
    """
    uses = index.after_moves(tensor)
    if len(uses) == 1 and uses[0].node.op_type in ACTIVATIONS:
        return str(uses[0].node.output[0])
    # All that is computed point by point from this tensor and constants, up to where it is one tensor again.
    reach, open_reads, curved, last = {index.before_moves(tensor)}, list(uses), False, None
    for node in index.nodes:
        dynamic = {index.before_moves(name) for name in index.dynamic_inputs(node)}
        if node.op_type not in _POINTWISE or not dynamic or not dynamic <= reach:
            continue
        made = str(node.output[0])
        curved = curved or node.op_type in _CURVES
        reach.add(made)
        open_reads = [use for use in open_reads if use.node is not node] + index.after_moves(made)
        if curved and all(use.slot >= 0 and index.before_moves(use.node.input[use.slot]) == made for use in open_reads):
            last = made
    return last


def embedding_tables(index: GraphIndex) -> list[onnx.NodeProto]:
    """``Gather`` nodes that look rows up in a constant float matrix (token, position and type tables)."""
    return [
        node
        for node in index.nodes
        if node.op_type == "Gather" and _is_float_matrix(index, node.input[0]) and attribute(node, "axis", 0) == 0
    ]


def _is_float_matrix(index: GraphIndex, tensor: str) -> bool:
    return (
        tensor in index.initializers
        and index.initializers[tensor].data_type in (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)
        and len(index.initializers[tensor].dims) == 2
    )


def embedding_sums(index: GraphIndex, linears: Sequence[Linear] = ()) -> list[str]:
    """The last of each chain of ``Add`` over embeddings; a lone embedding is its own sum.

    Embeddings are rows of tables, and of an image the patches that the first of ``linears`` makes, also after a
    LayerNorm and beside a constant class token.
    """
    embeddings = {node.output[0] for node in embedding_tables(index)}
    patches = {linear.output for linear in linears if index.before_moves(linear.input) in index.inputs}
    for node in index.nodes:
        sources = {source for name in node.input if name for source in _joined_sources(index, name)}
        if node.op_type == "Add" and sources and sources <= embeddings | patches:
            embeddings.add(node.output[0])
        elif node.op_type == "LayerNormalization" and sources and sources <= patches:
            patches.add(node.output[0])
    return [
        name
        for node in index.nodes
        for name in node.output
        if name in embeddings
        and not any(use.node.op_type == "Add" and use.node.output[0] in embeddings for use in index.after_moves(name))
    ]


def _joined_sources(index: GraphIndex, tensor: str) -> set[str]:
    """What ``tensor`` is made of by moving values and joining them in a ``Concat``, constants left out."""
    tensor = index.before_moves(tensor)
    node = index.producer(tensor)
    if node is not None and node.op_type == "Concat":
        return {source for name in node.input for source in _joined_sources(index, name)}
    return set() if index.is_constant(tensor) else {tensor}


def residual_sums(index: GraphIndex, linears: list[Linear]) -> list[str]:
    """``Add`` outputs that join a linear layer's output, times a constant per feature or not, with the stream around it."""
    outputs = {linear.output for linear in linears}
    return [
        node.output[0]
        for node in index.nodes
        if node.op_type == "Add"
        and len(index.dynamic_inputs(node)) == 2
        and any(_before_layer_scale(index, name) in outputs for name in node.input)
    ]


def _before_layer_scale(index: GraphIndex, tensor: str) -> str:
    tensor = index.before_moves(tensor)
    node = index.producer(tensor)
    if node is not None and node.op_type == "Mul" and len(dynamic := index.dynamic_inputs(node)) == 1:
        return index.before_moves(dynamic[0])
    return tensor


def is_head(index: GraphIndex, linear: Linear) -> bool:
    """Whether the layer's output is, up to rearrangement, an output of the graph (classifier, LM head)."""
    pending = [linear.output]
    while pending:
        tensor = pending.pop()
        if tensor in index.outputs:
            return True
        for use in index.uses(tensor):
            if use.slot == 0 and use.node.op_type in ("Reshape", "Transpose", "Squeeze", "Identity", "Cast", "Slice"):
                pending += use.node.output
    return False
