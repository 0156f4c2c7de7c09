"""What a lint rule reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import onnx

from deploy.quantization.qdq_view import QdqView


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One breach of one rule at one place."""

    rule: str
    """Stable id, ``QF`` and three digits."""
    node: str
    """Name of the node, or of its first output where it has none."""
    tensor: str
    """The tensor in question."""
    message: str
    """What is wrong."""
    advice: str
    """What to do."""

    def __str__(self) -> str:
        return f"{self.rule} {self.node} ({self.tensor}): {self.message}; {self.advice}"


Rule = Callable[[QdqView], Iterator[Finding]]


def at(node: onnx.NodeProto, tensor: str, rule: str, message: str, *, advice: str) -> Finding:
    """A finding at a node."""
    return Finding(rule=rule, node=node.name or node.output[0], tensor=tensor, message=message, advice=advice)
