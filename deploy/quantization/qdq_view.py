"""A Q/DQ graph seen two ways: as it is, and as the float graph that it stands for.

In the float view every reader of a dequantized activation reads the tensor itself, so that patterns of float graphs
are found; nodes keep their outputs' names, which tie the two views together.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from deploy.graphs.attention_pattern import Attention, find_attentions
from deploy.graphs.gate_path import GatePath, find_gate_path
from deploy.graphs.graph_index import GraphIndex
from deploy.graphs.graph_patterns import Linear, find_linears
from deploy.graphs.profiles import Profile
from deploy.graphs.site_choice import SiteChoice
from deploy.graphs.stored_constants import constant_array
from deploy.quantization.bits import Bits
from deploy.quantization.qdq_nodes import quantized_tensor
from deploy.quantization.site_selection import RecordedChoice


class QdqView:
    """Both views of one graph, with what the lint rules ask of them.

    Args:
        model: any ONNX graph.
        profile: the policy it is judged by.
        recorded: the choice of sites that the graph was made with.
        bits: widths of its integers.
        source: file that ``model`` is an outline of.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        profile: Profile,
        *,
        recorded: RecordedChoice | None = None,
        bits: Bits | None = None,
        source: Path | None = None,
    ) -> None:
        recorded = recorded or RecordedChoice(choice=SiteChoice())
        self.profile = recorded.choice.applied_to(profile)
        self.allowed_float = frozenset(recorded.excluded)
        self.included = frozenset(recorded.included)
        self.bits = bits or Bits()
        self._source = source
        self.index = GraphIndex(model.graph)
        self.floats = GraphIndex(_without_activation_pairs(model, self.index).graph)
        self.linears: list[Linear] = find_linears(self.floats)
        self.attentions: list[Attention] = find_attentions(self.floats)
        self.gates: GatePath = find_gate_path(self.floats, self.attentions, self.linears)
        self._nodes = {name: node for node in self.index.nodes for name in node.output}

    def node(self, output: str) -> onnx.NodeProto:
        """The node of the real graph that makes ``output``."""
        return self._nodes[output]

    def quantizers(self) -> list[onnx.NodeProto]:
        """QuantizeLinear nodes on tensors that depend on the inputs."""
        return [n for n in self.index.nodes if n.op_type == "QuantizeLinear" and not self.index.is_constant(n.input[0])]

    def dequantizers(self) -> list[onnx.NodeProto]:
        """All DequantizeLinear nodes."""
        return [node for node in self.index.nodes if node.op_type == "DequantizeLinear"]

    def dequantizer_of(self, tensor: str) -> onnx.NodeProto | None:
        """The DequantizeLinear whose values ``tensor`` holds, seen through rearrangement."""
        node = self.index.producer(self.index.before_moves(tensor))
        return node if node is not None and node.op_type == "DequantizeLinear" else None

    def tensor_of(self, quantizer: onnx.NodeProto) -> str:
        """The tensor that a QuantizeLinear of an activation is for."""
        return quantized_tensor(self.index.producer(quantizer.input[0]), quantizer.input[0])

    def constant(self, tensor: str) -> np.ndarray | None:
        """Values of an initializer; None for anything else."""
        stored = self.index.initializers.get(tensor)
        return None if stored is None else constant_array(stored, self._source)

    def parameters(self, node: onnx.NodeProto) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Scale and zero point of a QuantizeLinear or DequantizeLinear; an absent zero point is None."""
        return self.constant(node.input[1]), self.constant(node.input[2]) if len(node.input) > 2 else None


def is_activation_pair(index: GraphIndex, node: onnx.NodeProto) -> bool:
    """Whether ``node`` is a DequantizeLinear right behind a QuantizeLinear of a tensor that depends on the inputs."""
    source = index.producer(node.input[0]) if node.op_type == "DequantizeLinear" else None
    return source is not None and source.op_type == "QuantizeLinear" and not index.is_constant(source.input[0])


def _without_activation_pairs(model: onnx.ModelProto, index: GraphIndex) -> onnx.ModelProto:
    origin: dict[str, str] = {}
    dropped: set[str] = set()
    for node in index.nodes:
        if node.op_type == "QuantizeLinear" and not index.is_constant(node.input[0]):
            if all(is_activation_pair(index, use.node) for use in index.uses(node.output[0])):
                dropped.add(node.output[0])
                if quantized_tensor(index.producer(node.input[0]), node.input[0]) != node.input[0]:
                    dropped.add(node.input[0])
        elif is_activation_pair(index, node):
            dropped.add(node.output[0])
            source = index.producer(node.input[0])
            assert source is not None
            tensor = quantized_tensor(index.producer(source.input[0]), source.input[0])
            origin[node.output[0]] = origin.get(tensor, tensor)
    graph = onnx.GraphProto(name=model.graph.name, input=model.graph.input, output=model.graph.output)
    graph.initializer.extend(
        onnx.TensorProto(name=tensor.name, dims=tensor.dims, data_type=tensor.data_type)
        for tensor in model.graph.initializer
    )
    for node in index.nodes:
        if node.output[0] not in dropped:
            copy = graph.node.add()
            copy.CopyFrom(node)
            for slot, name in enumerate(node.input):
                copy.input[slot] = origin.get(name, name)
    return onnx.ModelProto(graph=graph)
