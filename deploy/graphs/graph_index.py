"""Who makes and who reads each tensor of an ONNX graph, and which tensors are constant.

Built once per graph; later edits of the graph are not seen.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from deploy.graphs.stored_constants import constant_array

MOVES_DATA = frozenset(
    {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Identity", "Flatten", "Expand", "Slice", "Split", "Cast"}
)
"""Operators that move or select values of their first input and compute nothing."""


_GRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
_RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"}
)


@dataclass(frozen=True, slots=True)
class Use:
    """One input slot of one node; slot -1 stands for a subgraph of the node that reads the tensor."""

    node: onnx.NodeProto
    slot: int


class GraphIndex:
    """Lookups on one graph.

    Args:
        graph: topologically ordered, as ONNX demands; of subgraphs only what they read from around them is seen.
        source: file that it is an outline of, where its values are asked for.
    """

    def __init__(self, graph: onnx.GraphProto, *, source: Path | None = None) -> None:
        self._source = source
        self.nodes: tuple[onnx.NodeProto, ...] = tuple(graph.node)
        self.initializers: dict[str, onnx.TensorProto] = {tensor.name: tensor for tensor in graph.initializer}
        self.inputs = tuple(value.name for value in graph.input if value.name not in self.initializers)
        self.outputs = tuple(value.name for value in graph.output)
        self._producers: dict[str, onnx.NodeProto] = {}
        self._uses: dict[str, list[Use]] = defaultdict(list)
        self._constants: set[str] = set(self.initializers)
        for node in self.nodes:
            for slot, name in enumerate(node.input):
                if name:
                    self._uses[name].append(Use(node, slot))
            inner = self.inner_reads(node)
            for name in inner:
                self._uses[name].append(Use(node, -1))
            for name in node.output:
                self._producers[name] = node
            if node.op_type not in _RANDOM and all(not n or n in self._constants for n in (*node.input, *inner)):
                self._constants.update(node.output)

    @staticmethod
    def inner_reads(node: onnx.NodeProto) -> list[str]:
        """Tensors that the subgraphs of a control-flow node read from around them, sorted."""
        return sorted(_read_from_around(node))

    def producer(self, tensor: str) -> onnx.NodeProto | None:
        """The node that makes ``tensor``; None for inputs, initializers and the empty name."""
        return self._producers.get(tensor)

    def uses(self, tensor: str) -> tuple[Use, ...]:
        """Every input slot that reads ``tensor``, in graph order."""
        return tuple(self._uses.get(tensor, ()))

    def only_use(self, tensor: str) -> Use | None:
        """The one reader of ``tensor``'s values; None when there are several or when it is a graph output."""
        uses = [use for use in self._uses.get(tensor, ()) if use.node.op_type != "Shape"]
        return uses[0] if len(uses) == 1 and tensor not in self.outputs else None

    def is_constant(self, tensor: str) -> bool:
        """Whether ``tensor`` depends on no graph input."""
        return tensor in self._constants

    def constant_shape(self, tensor: str) -> tuple[int, ...] | None:
        """Shape of a stored constant, also seen through ``Transpose``, ``Identity`` and dequantization; else None."""
        stored = self._stored(tensor)
        if stored is not None:
            return tuple(stored.dims)
        node = self._producers.get(tensor)
        if node is None or node.op_type not in ("Transpose", "Identity", "QuantizeLinear", "DequantizeLinear"):
            return None
        inner = self.constant_shape(node.input[0])
        return None if inner is None else tuple(inner[axis] for axis in _permutation(node, len(inner)))

    def constant_value(self, tensor: str) -> np.ndarray:
        """Values of a tensor of a float graph for which :meth:`constant_shape` has an answer."""
        stored = self._stored(tensor)
        if stored is not None:
            return constant_array(stored, self._source)
        node = self._producers[tensor]
        inner = self.constant_value(node.input[0])
        return np.transpose(inner, _permutation(node, inner.ndim))

    def _stored(self, tensor: str) -> onnx.TensorProto | None:
        if tensor in self.initializers:
            return self.initializers[tensor]
        node = self._producers.get(tensor)
        value: Any = attribute(node, "value", None) if node is not None and node.op_type == "Constant" else None
        return value if isinstance(value, onnx.TensorProto) else None

    def constant_type(self, tensor: str) -> int | None:
        """ONNX element type of a stored constant, also seen through ``Transpose`` and ``Identity``; else None."""
        if (stored := self._stored(tensor)) is not None:
            return int(stored.data_type)
        node = self._producers.get(tensor)
        if node is None or node.op_type not in ("Transpose", "Identity"):
            return None
        return self.constant_type(node.input[0])

    def before_moves(self, tensor: str) -> str:
        """The tensor whose values ``tensor`` only rearranges."""
        while (node := self._producers.get(tensor)) is not None and self._moves_data(node):
            tensor = node.input[0]
        return tensor

    def after_moves(self, tensor: str) -> list[Use]:
        """The first computing readers of ``tensor``, seen through operators that only rearrange it."""
        found: list[Use] = []
        for use in self.uses(tensor):
            if use.slot == 0 and self._moves_data(use.node):
                for output in use.node.output:
                    found += self.after_moves(output)
            else:
                found.append(use)
        return found

    def _moves_data(self, node: onnx.NodeProto) -> bool:
        """Whether ``node`` moves or selects values: one of :data:`MOVES_DATA`, or a ``Gather`` at fixed places (a token)."""
        return node.op_type in MOVES_DATA or (
            node.op_type == "Gather" and self.is_constant(node.input[1]) and not self.is_constant(node.input[0])
        )

    def dynamic_inputs(self, node: onnx.NodeProto) -> list[str]:
        """Inputs of ``node`` that depend on the graph's inputs."""
        return [name for name in node.input if name and name not in self._constants]


def attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    """Value of one attribute of ``node``, or ``default``."""
    return next((onnx.helper.get_attribute_value(entry) for entry in node.attribute if entry.name == name), default)


def _read_from_around(node: onnx.NodeProto) -> set[str]:
    found: set[str] = set()
    for entry in node.attribute:
        for graph in [entry.g, *entry.graphs] if entry.type in _GRAPHS else ():
            own = {value.name for value in (*graph.input, *graph.initializer)}
            own.update(name for inner in graph.node for name in inner.output)
            read = {name for inner in graph.node for name in (*inner.input, *_read_from_around(inner))}
            found |= read.union(value.name for value in graph.output) - own - {""}
    return found


def _permutation(node: onnx.NodeProto, rank: int) -> tuple[int, ...]:
    if node.op_type != "Transpose":
        return tuple(range(rank))
    return tuple(attribute(node, "perm", range(rank - 1, -1, -1)))
