"""An ONNX file read, with or without the weights that it keeps in other files, and what of it lies where."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx
from onnx.external_data_helper import ExternalDataInfo, uses_external_data


def read_structure(path: Path) -> onnx.ModelProto:
    """The graph of an ONNX file; weights in external files are not loaded.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not an ONNX model.
    """
    return _read(path, with_weights=False)


def load_graph(path: Path) -> onnx.ModelProto:
    """The graph of an ONNX file with all its weights; raises as :func:`read_structure`."""
    return _read(path, with_weights=True)


def _read(path: Path, *, with_weights: bool) -> onnx.ModelProto:
    if not path.is_file():
        raise FileNotFoundError(f"no ONNX file at {path}")
    try:
        model = onnx.load(path, load_external_data=with_weights)
    except Exception as error:  # protobuf raises its own private DecodeError type
        raise ValueError(f"{path} is not an ONNX model: {type(error).__name__}") from error
    if not model.graph.node:
        raise ValueError(f"{path} is not an ONNX model: it has no nodes")
    return model


def external_files(model: onnx.ModelProto) -> list[str]:
    """Files that hold weights of ``model``, relative to its folder, sorted."""
    return sorted({ExternalDataInfo(tensor).location for tensor in stored_tensors(model) if uses_external_data(tensor)})


def stored_bytes(path: Path) -> int:
    """Size on disk of an ONNX file and of the files that hold its weights."""
    parts = [path, *(path.parent / location for location in external_files(read_structure(path)))]
    return sum(part.stat().st_size for part in parts)


def stored_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every constant of a model: its initializers and the tensors in its nodes' attributes."""
    yield from model.graph.initializer
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                yield attribute.t
