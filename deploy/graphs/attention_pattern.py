"""The attention of a transformer in an ONNX graph, found by structure and never by name.

Two products of activations around a softmax; between them, whatever a variant puts there:
``[Mul scale] -> [Add mask] -> Softmax -> [Sub -> Relu | Mul -> Add -> Clip | Slice]``, and after them
``[Transpose, Reshape] -> [Mul gate]``. A softmax may be written out (``Exp``, ``Div``), as off-by-one softmax is.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from deploy.graphs.graph_index import GraphIndex

_AFTER_SOFTMAX = frozenset(
    {"Sub", "Add", "Mul", "Div", "Relu", "Clip", "Min", "Max", "Cast", "Slice", "Identity", "Where"}
)
_BEFORE_SOFTMAX = frozenset(
    {"Sub", "Add", "Mul", "Div", "Cast", "Concat", "Pad", "Where", "Identity", "Min", "Max", "Clip", "Exp"}
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Attention:
    """Two products of activations around a softmax, with or without a clip and a gate."""

    qk: onnx.NodeProto
    softmax: onnx.NodeProto
    """``Softmax``, or the ``Div`` of a written-out one."""
    pv: onnx.NodeProto
    scores: str
    """After the scale, before the mask."""
    probabilities: str
    """What weighs the values: after the clip, if there is one."""
    context: str
    """What enters the output projection: after the gate, if there is one."""
    gate_probability: str | None
    """Output of the gate's sigmoid."""


def find_attentions(index: GraphIndex) -> list[Attention]:
    """Every attention pattern of the graph, in graph order."""
    return [attention for node in index.nodes if (attention := _as_attention(index, node)) is not None]


def _as_attention(index: GraphIndex, pv: onnx.NodeProto) -> Attention | None:
    if pv.op_type != "MatMul" or len(index.dynamic_inputs(pv)) != 2:
        return None
    softmax = _normaliser(index, pv.input[0])
    qk = _product_before(index, softmax.input[0]) if softmax is not None else None
    if softmax is None or qk is None:
        return None
    context, gate_probability = _follow_context(index, pv.output[0])
    return Attention(
        qk=qk,
        softmax=softmax,
        pv=pv,
        scores=_after_scale(index, qk.output[0]),
        probabilities=pv.input[0],
        context=context,
        gate_probability=gate_probability,
    )


def _normaliser(index: GraphIndex, tensor: str) -> onnx.NodeProto | None:
    """The ``Softmax`` (or the ``Div`` of a written-out softmax) that the probabilities come from."""
    node = index.producer(tensor)
    if node is None or node.op_type == "Softmax":
        return node
    if node.op_type == "Div" and (top := index.producer(node.input[0])) is not None and top.op_type == "Exp":
        return node
    if node.op_type in _AFTER_SOFTMAX:
        for name in index.dynamic_inputs(node):
            if (found := _normaliser(index, name)) is not None:
                return found
    return None


def _product_before(index: GraphIndex, tensor: str) -> onnx.NodeProto | None:
    """The product of queries and keys that a softmax input comes from."""
    node = index.producer(tensor)
    if node is None:
        return None
    if node.op_type == "MatMul":
        return node if len(index.dynamic_inputs(node)) == 2 else None
    if node.op_type in _BEFORE_SOFTMAX:
        for name in index.dynamic_inputs(node):
            if (found := _product_before(index, name)) is not None:
                return found
    return None


def _after_scale(index: GraphIndex, tensor: str) -> str:
    """The scores after a constant factor, if the graph still has one (folded exports have none)."""
    use = index.only_use(tensor)
    if use is not None and use.node.op_type in ("Mul", "Div") and len(index.dynamic_inputs(use.node)) == 1:
        return str(use.node.output[0])
    return tensor


def _follow_context(index: GraphIndex, tensor: str) -> tuple[str, str | None]:
    """From the output of PV to what enters the output projection: that tensor, and the gate."""
    gate: str | None = None
    while (use := index.only_use(tensor)) is not None:
        if use.node.op_type == "Mul" and gate is None:
            gate = _gate_of(index, use.node.input[1 - use.slot])
            if gate is None:
                break
        elif not (use.slot == 0 and use.node.op_type in ("Transpose", "Reshape", "Identity")):
            break
        tensor = use.node.output[0]
    return tensor, gate


def _gate_of(index: GraphIndex, tensor: str) -> str | None:
    """The sigmoid output that a factor of the context comes from, seen through its scale."""
    tensor = index.before_moves(tensor)
    node = index.producer(tensor)
    if node is None:
        return None
    if node.op_type == "Sigmoid":
        return tensor
    if node.op_type == "Mul" and len(dynamic := index.dynamic_inputs(node)) == 1:
        return _gate_of(index, dynamic[0])
    return None


def nodes_before_softmax(index: GraphIndex, attention: Attention) -> list[str]:
    """First outputs of the nodes from the product of queries and keys (left out) up to the softmax (included)."""
    path = {attention.qk.output[0]}
    found: list[str] = []
    for node in index.nodes:
        if path & set(node.input):
            if node is attention.softmax or node.op_type in _BEFORE_SOFTMAX:
                found.append(node.output[0])
            if node is attention.softmax:
                break
            if node.op_type in _BEFORE_SOFTMAX:
                path.update(node.output)
    return found
