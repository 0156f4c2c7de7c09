"""Who makes and who reads each tensor of an ONNX graph, and which tensors are constant.

Built once per graph; later edits of the graph are not seen.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import onnx

MOVES_DATA = frozenset(
    {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Identity", "Flatten", "Expand", "Slice", "Split", "Cast"}
)
"""Operators that move or select values of their first input and compute nothing."""


@dataclass(frozen=True, slots=True)
class Use:
    """One input slot of one node."""

    node: onnx.NodeProto
    slot: int


class GraphIndex:
    """Lookups on one graph.

    Args:
        graph: topologically ordered, as ONNX demands; subgraphs are not entered.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.nodes: tuple[onnx.NodeProto, ...] = tuple(graph.node)
        self.initializers = {tensor.name: tensor for tensor in graph.initializer}
        self.inputs = tuple(value.name for value in graph.input if value.name not in self.initializers)
        self.outputs = tuple(value.name for value in graph.output)
        self._producers: dict[str, onnx.NodeProto] = {}
        self._uses: dict[str, list[Use]] = defaultdict(list)
        self._constants: set[str] = set(self.initializers)
        for node in self.nodes:
            for slot, name in enumerate(node.input):
                if name:
                    self._uses[name].append(Use(node, slot))
            for name in node.output:
                self._producers[name] = node
            if not node.op_type.startswith("Random") and all(not n or n in self._constants for n in node.input):
                self._constants.update(node.output)
        self._shapes = {
            value.name: tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in shape.dim)
            for value in (*graph.value_info, *graph.input, *graph.output)
            if (shape := value.type.tensor_type.shape) is not None and value.type.tensor_type.HasField("shape")
        }

    def producer(self, tensor: str) -> onnx.NodeProto | None:
        """The node that makes ``tensor``; None for inputs, initializers and the empty name."""
        return self._producers.get(tensor)

    def uses(self, tensor: str) -> tuple[Use, ...]:
        """Every input slot that reads ``tensor``, in graph order."""
        return tuple(self._uses.get(tensor, ()))

    def only_use(self, tensor: str) -> Use | None:
        """The one reader of ``tensor``; None when there are several or when it is a graph output."""
        uses = self._uses.get(tensor, ())
        return uses[0] if len(uses) == 1 and tensor not in self.outputs else None

    def is_constant(self, tensor: str) -> bool:
        """Whether ``tensor`` depends on no graph input."""
        return tensor in self._constants

    def shape(self, tensor: str) -> tuple[int | None, ...] | None:
        """Shape as far as the graph states it (None for a dynamic dimension); None when it states nothing."""
        if tensor in self.initializers:
            return tuple(self.initializers[tensor].dims)
        node = self._producers.get(tensor)
        if (
            node is not None
            and node.op_type == "Constant"
            and isinstance(value := attribute(node, "value", None), onnx.TensorProto)
        ):
            return tuple(value.dims)
        if node is not None and node.op_type == "Transpose" and tensor in self._constants:
            inner = self.shape(node.input[0])
            order = attribute(node, "perm", None)
            if inner is not None:
                return tuple(inner[axis] for axis in order) if order else tuple(reversed(inner))
        return self._shapes.get(tensor)

    def before_moves(self, tensor: str) -> str:
        """The tensor whose values ``tensor`` only rearranges."""
        while (node := self._producers.get(tensor)) is not None and node.op_type in MOVES_DATA:
            tensor = node.input[0]
        return tensor

    def after_moves(self, tensor: str) -> list[Use]:
        """The first computing readers of ``tensor``, seen through operators that only rearrange it."""
        found: list[Use] = []
        for use in self.uses(tensor):
            if use.slot == 0 and use.node.op_type in MOVES_DATA:
                for output in use.node.output:
                    found += self.after_moves(output)
            else:
                found.append(use)
        return found

    def dynamic_inputs(self, node: onnx.NodeProto) -> list[str]:
        """Inputs of ``node`` that depend on the graph's inputs."""
        return [name for name in node.input if name and name not in self._constants]


def attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    """Value of one attribute of ``node``, or ``default``."""
    return next((onnx.helper.get_attribute_value(entry) for entry in node.attribute if entry.name == name), default)
