"""Norms of an ONNX graph: LayerNorm and RMSNorm as one operator, or written out as older operator sets need it.

RMSNorm    Mul(gain, x / sqrt(mean(x^2) + eps)), also as x * (1 / sqrt(...)) and with the square as Mul(x, x)
LayerNorm  the same of d = x - mean(x), computed once or twice, and then Add(bias)
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from deploy.graphs.graph_index import GraphIndex, Use

_WHOLE = frozenset({"LayerNormalization", "RMSNormalization"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Norm:
    """One norm with its gain."""

    input: str
    output: str
    gain: Use
    """The slot that reads the gain, a constant vector."""


def find_norms(index: GraphIndex) -> list[Norm]:
    """Every norm of the graph, in graph order."""
    return [norm for node in index.nodes if (norm := _as_norm(index, node)) is not None]


def _as_norm(index: GraphIndex, node: onnx.NodeProto) -> Norm | None:
    if node.op_type in _WHOLE:
        return Norm(input=node.input[0], output=node.output[0], gain=Use(node, 1))
    if node.op_type != "Mul":
        return None
    for slot, name in enumerate(node.input):
        shape = index.constant_shape(name)
        source = _normalised_by_rms(index, node.input[1 - slot]) if shape is not None and len(shape) == 1 else None
        if source is None:
            continue
        if (centred := _centred(index, source)) is None:
            return Norm(input=source, output=node.output[0], gain=Use(node, slot))
        return Norm(input=centred, output=_after_vector(index, node.output[0]), gain=Use(node, slot))
    return None


def _centred(index: GraphIndex, tensor: str) -> str | None:
    """The tensor x where ``tensor`` is ``x - mean(x)``; None for anything else."""
    node = index.producer(tensor)
    if node is None or node.op_type != "Sub":
        return None
    source, mean = (index.before_moves(name) for name in node.input)
    reduction = index.producer(mean)
    if reduction is None or reduction.op_type != "ReduceMean" or index.before_moves(reduction.input[0]) != source:
        return None
    return source


def _after_vector(index: GraphIndex, tensor: str) -> str:
    """``tensor`` with the bias, a constant vector, added where that is all that reads it."""
    use = index.only_use(tensor)
    if use is not None and use.node.op_type == "Add":
        shape = index.constant_shape(use.node.input[1 - use.slot])
        if shape is not None and len(shape) == 1:
            return str(use.node.output[0])
    return tensor


def _normalised_by_rms(index: GraphIndex, tensor: str) -> str | None:
    """Input of ``x / sqrt(mean(x^2) + eps)``; None for anything else."""
    node = index.producer(index.before_moves(tensor))
    if node is None or node.op_type not in ("Div", "Mul"):
        return None
    pairs = [tuple(node.input)] if node.op_type == "Div" else [tuple(node.input), tuple(node.input)[::-1]]
    for source, divisor in pairs:
        root = index.producer(index.before_moves(divisor))
        if node.op_type == "Mul":
            if root is None or root.op_type != "Reciprocal":
                continue
            root = index.producer(index.before_moves(root.input[0]))
        if root is not None and root.op_type == "Sqrt":
            divided, squared = index.before_moves(source), _squared_means(index, root)
            centred = _centred(index, divided)
            if divided in squared or (centred is not None and centred in {_centred(index, name) for name in squared}):
                return divided
    return None


def _squared_means(index: GraphIndex, root: onnx.NodeProto) -> set[str]:
    """Tensors whose mean square, plus a constant, a ``Sqrt`` takes."""
    total = index.producer(index.before_moves(root.input[0]))
    if total is None or total.op_type != "Add" or len(dynamic := index.dynamic_inputs(total)) != 1:
        return set()
    mean = index.producer(index.before_moves(dynamic[0]))
    square = (
        index.producer(index.before_moves(mean.input[0])) if mean is not None and mean.op_type == "ReduceMean" else None
    )
    if square is None or square.op_type not in ("Pow", "Mul"):
        return set()
    return {index.before_moves(name) for name in index.dynamic_inputs(square)}
