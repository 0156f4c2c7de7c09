"""An ONNX artifact as the CPU backends take it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx

from deploy.graphs.graph_info import METADATA_KEY, GraphInfo
from deploy.graphs.graph_structure import files_beside, read_outline, read_structure
from deploy.graphs.tensor_types import has_float8


@dataclass(frozen=True, kw_only=True, slots=True)
class CpuArtifact:
    """What a CPU runtime is opened on."""

    source: str | bytes
    """Path of the file, or the bytes of a model that was rewritten for the runtime."""
    weights: tuple[Path, ...]
    """Files beside the graph that hold its weights."""
    is_quantized: bool
    """Whether the graph holds QuantizeLinear nodes."""
    is_float8: bool
    """Whether these give FP8 and not integers."""
    input_shapes: dict[str, tuple[int | str, ...]]
    """Sizes of each input, a name where a size is free."""
    output_names: tuple[str, ...]
    """Outputs of the graph, in order."""
    info: GraphInfo | None
    """The graph's own metadata; None for a graph that quietformer did not export."""


def read_artifact(path: Path, *, rewrite: Callable[[onnx.ModelProto], bool]) -> CpuArtifact:
    """Read an ONNX file.

    Args:
        path: of the graph.
        rewrite: brings a quantized graph into the form that a runtime is fast on, in place; returns whether it changed anything.

    Raises:
        FileNotFoundError: no such file, or one of those that hold its weights.
        ValueError: not an ONNX model, or one with damaged metadata.
    """
    structure = read_outline(path)
    shapes = input_shapes(structure)
    is_ours = any(entry.key == METADATA_KEY for entry in structure.metadata_props)
    info = GraphInfo.read(structure, name=str(path)) if is_ours else None
    weights = tuple(path.parent / location for location in files_beside(path))
    if missing := [file for file in weights if not file.is_file()]:
        raise FileNotFoundError(f"{path} keeps weights in {missing[0].name}, which is not beside it")
    is_quantized = any(node.op_type == "QuantizeLinear" for node in structure.graph.node)
    if is_quantized:
        structure = read_structure(path)
    is_changed = is_quantized and rewrite(structure)
    return CpuArtifact(
        source=structure.SerializeToString() if is_changed else str(path),
        weights=weights,
        is_quantized=is_quantized,
        is_float8=has_float8(structure),
        input_shapes=shapes,
        output_names=tuple(value.name for value in structure.graph.output),
        info=info,
    )


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
