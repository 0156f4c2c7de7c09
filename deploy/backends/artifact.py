"""An ONNX artifact as the CPU backends take it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import onnx

from deploy.backends.unsigned_activations import use_unsigned_activations
from deploy.graph_info import METADATA_KEY, GraphInfo, load_graph
from deploy.graph_structure import read_structure


@dataclass(frozen=True, kw_only=True, slots=True)
class CpuArtifact:
    """What a CPU runtime is opened on."""

    source: str | bytes
    """Path of the file, or the bytes of a model whose signed activations became unsigned."""
    is_quantized: bool
    """Whether the graph holds QuantizeLinear nodes."""
    input_shapes: dict[str, tuple[int | str, ...]]
    """Sizes of each input, a name where a size is free."""
    info: GraphInfo | None
    """The graph's own metadata; None for a graph that quietformer did not export."""


def read_artifact(path: Path) -> CpuArtifact:
    """Read an ONNX file.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not an ONNX model, or one with damaged metadata or without its external weights.
    """
    structure = read_structure(path)
    shapes = input_shapes(structure)
    is_ours = any(entry.key == METADATA_KEY for entry in structure.metadata_props)
    info = GraphInfo.read(structure, name=str(path)) if is_ours else None
    if not any(node.op_type == "QuantizeLinear" for node in structure.graph.node):
        return CpuArtifact(source=str(path), is_quantized=False, input_shapes=shapes, info=info)
    model = load_graph(path)
    if use_unsigned_activations(model) == 0:
        return CpuArtifact(source=str(path), is_quantized=True, input_shapes=shapes, info=info)
    return CpuArtifact(source=model.SerializeToString(), is_quantized=True, input_shapes=shapes, info=info)


def input_shapes(model: onnx.ModelProto) -> dict[str, tuple[int | str, ...]]:
    """Sizes of each input of a graph; a free size without a name gets one of its own."""
    constants = {tensor.name for tensor in model.graph.initializer}
    return {
        value.name: tuple(
            dim.dim_value if dim.HasField("dim_value") else dim.dim_param or f"{value.name}[{axis}]"
            for axis, dim in enumerate(value.type.tensor_type.shape.dim)
        )
        for value in model.graph.input
        if value.name not in constants
    }
