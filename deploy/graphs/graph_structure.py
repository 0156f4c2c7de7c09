"""An ONNX file read: whole, without the weights in other files, or without any; and what of it lies where."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import onnx
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from deploy.graphs.graph_outline import outline
from deploy.graphs.graph_refusal import why_unreadable


def read_structure(path: Path) -> onnx.ModelProto:
    """The graph of an ONNX file; weights in external files are not loaded.

    Raises:
        FileNotFoundError: no such file.
        IsADirectoryError: a folder.
        ValueError: not an ONNX model; says whether it is empty, a text, cut off or of another kind.
    """
    return _read(path, partial(onnx.load, load_external_data=False))


def load_graph(path: Path) -> onnx.ModelProto:
    """The graph of an ONNX file with all its weights; raises as :func:`read_structure`."""
    return _read(path, onnx.load)


def read_outline(path: Path) -> onnx.ModelProto:
    """The graph of an ONNX file, with references for its large constants (:mod:`deploy.graphs.graph_outline`).

    For whoever asks what a graph looks like, or takes its weights one by one
    (:func:`deploy.graphs.stored_constants.constant_array`); raises as :func:`read_structure`.
    """
    return _read(path, outline)


def _read(path: Path, read: Callable[[Path], onnx.ModelProto]) -> onnx.ModelProto:
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; expected an ONNX file")
    if not path.is_file():
        raise FileNotFoundError(f"no ONNX file at {path}")
    try:
        model = read(path) if path.stat().st_size else onnx.ModelProto()
    except Exception as error:  # protobuf raises its own private DecodeError type
        raise ValueError(f"{path} {why_unreadable(path, error)}") from error
    if not model.graph.node:
        what = "has no nodes" if path.stat().st_size else "is empty"
        raise ValueError(f"{path} is not an ONNX model: it {what}")
    return model


def external_files(model: onnx.ModelProto) -> list[str]:
    """Files that hold weights of ``model``, relative to its folder, sorted."""
    return sorted({ExternalDataInfo(tensor).location for tensor in stored_tensors(model) if uses_external_data(tensor)})


def stored_bytes(path: Path) -> int:
    """Size on disk of an ONNX file and of the files that hold its weights."""
    return sum((path.parent / name).stat().st_size for name in (path.name, *files_beside(path)))


def files_beside(path: Path) -> list[str]:
    """:func:`external_files` of an ONNX file that is not read for it."""
    return [name for name in external_files(read_outline(path)) if name != path.name]


def stored_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every constant of a model: its initializers and the tensors in its nodes' attributes."""
    yield from model.graph.initializer
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                yield attribute.t
