"""What enters products of two activations and residual sums, and where the range of such an operand is measured."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

from deploy.graphs.attention_pattern import Attention
from deploy.graphs.graph_index import GraphIndex, Use
from deploy.graphs.graph_patterns import Linear, residual_sums

_REARRANGES = frozenset({"Transpose", "Reshape", "Squeeze", "Unsqueeze", "Identity", "Flatten", "Expand"})
"""Operators whose output has exactly the values of their input, some perhaps repeated: the same range."""


def product_operands(attentions: Sequence[Attention]) -> list[Use]:
    """Both operands of both products of every attention."""
    return [Use(node, slot) for attention in attentions for node in (attention.qk, attention.pv) for slot in (0, 1)]


def scaled_operand(index: GraphIndex, tensor: str, attentions: Sequence[Attention]) -> str:
    """``tensor`` times the one number that it is multiplied with on its only way into a product; without one, ``tensor``.

    Some exports put the scale of the scores on queries and keys. Behind it the integers are the same, and the product reads them.
    """
    uses = _value_uses(index, tensor)
    if len(uses) != 1 or uses[0].node.op_type not in ("Mul", "Div"):
        return tensor
    node, slot = uses[0].node, uses[0].slot
    factor = index.constant_shape(node.input[1 - slot])
    if factor is None or math.prod(factor) != 1 or (node.op_type == "Div" and slot != 0):
        return tensor
    products = {product.output[0] for attention in attentions for product in (attention.qk, attention.pv)}
    scaled = str(node.output[0])
    readers = _value_uses(index, scaled)
    return scaled if readers and all(use.node.output[0] in products for use in readers) else tensor


def _value_uses(index: GraphIndex, tensor: str) -> list[Use]:
    """Computing readers of ``tensor``, behind moves, but for those that ask for its shape."""
    return [use for use in index.after_moves(tensor) if use.node.op_type != "Shape"]


def sum_operands(index: GraphIndex, linears: Sequence[Linear]) -> Iterator[Use]:
    """Both operands of every residual sum."""
    for name in residual_sums(index, list(linears)):
        node = index.producer(name)
        assert node is not None
        yield from (Use(node, slot) for slot in range(2))


def measured_tensor(index: GraphIndex, tensor: str, known: Collection[str]) -> str:
    """The first tensor on the way back that has the same values as ``tensor`` and is ``known``, or else the last that has them."""
    while tensor not in known and (node := index.producer(tensor)) is not None and node.op_type in _REARRANGES:
        tensor = node.input[0]
    return tensor


def leads_only_to(index: GraphIndex, use: Use, targets: Collection[str]) -> bool:
    """Whether what ``use`` reads goes into nodes with these first outputs, through moves, and nowhere else."""
    if use.node.output[0] in targets:
        return True
    if index.before_moves(use.node.output[0]) == use.node.output[0]:
        return False
    readers = [reader for output in use.node.output for reader in index.after_moves(output)]
    return bool(readers) and all(reader.node.output[0] in targets for reader in readers)
