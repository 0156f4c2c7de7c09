"""The way from a layer's input to the gates of its attention heads, found by structure.

``x -> [linear -> activation]* -> linear -> [moves, scale] -> Sigmoid -> times what the heads give``
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from deploy.graphs.attention_pattern import Attention
from deploy.graphs.graph_index import GraphIndex
from deploy.graphs.graph_patterns import ACTIVATIONS, Linear


@dataclass(frozen=True, kw_only=True, slots=True)
class GatePath:
    """What of a graph exists for its gates only."""

    linears: frozenset[str]
    """First outputs of the nodes of linear layers."""
    tensors: frozenset[str]
    """Gate probabilities, what activation functions on the way give, and what gates multiply."""


def find_gate_path(index: GraphIndex, attentions: Sequence[Attention], linears: Sequence[Linear]) -> GatePath:
    """The gate paths of all layers; empty for a graph without gates."""
    by_output = {name: linear for linear in linears for name in (linear.output, linear.node.output[0])}
    found: set[str] = set()
    tensors: set[str] = set()
    for attention in attentions:
        if attention.gate_probability is None:
            continue
        tensors.update((attention.gate_probability, attention.pv.output[0]))
        sigmoid = index.producer(attention.gate_probability)
        assert sigmoid is not None
        tensor = index.before_moves(sigmoid.input[0])
        while tensor in by_output:
            linear = by_output[tensor]
            found.add(linear.node.output[0])
            tensor = index.before_moves(linear.input)
            activation = index.producer(tensor)
            if activation is None or activation.op_type not in ACTIVATIONS or index.only_use(tensor) is None:
                break
            tensors.add(tensor)
            tensor = index.before_moves(activation.input[0])
    return GatePath(linears=frozenset(found), tensors=frozenset(tensors))
