"""Writing a graph: deterministic bytes, large weights in a file of their own, and nothing replaced before it is checked."""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import onnx

from deploy.files import atomic_path
from deploy.graphs.graph_encoding import encoded_graph
from deploy.graphs.stored_constants import constant_bytes, constant_size, is_reference, refer, with_values

EXTERNAL_DATA_LIMIT = 1_800_000_000
"""Bytes of weights above which they leave the ONNX file, whose own limit is 2 GiB."""
_SMALLEST_EXTERNAL_TENSOR = 1024
_ALIGNMENT = 4096
_HASH_DIGITS = 16


@contextmanager
def checked_before_replacing(model: onnx.ModelProto, path: Path, *, source: Path | None = None) -> Iterator[Path]:
    """Write ``model`` beside ``path``, hand the written file out for checks, then put it in place.

    Weights above ``EXTERNAL_DATA_LIMIT`` go into ``<name>.<hash of the weights>.data`` and out of ``model``. The hash in
    the name lets an earlier graph keep its own weights until the new graph has taken its place, which no fixed name could:
    a run that is killed leaves either graph whole. An error leaves every earlier file untouched.

    Args:
        model: the graph, or what became of a graph's outline (:func:`deploy.graphs.graph_outline.read_outline`).
        path: ONNX file to write.
        source: the file of that outline.
    """
    data, existed = None, False
    constants = model.graph.initializer
    if sum(constant_size(tensor, source) for tensor in constants) > EXTERNAL_DATA_LIMIT:
        data = path.with_name(f"{path.name}.{_hash_weights(constants, source)}.data")
        existed = data.exists()
        with atomic_path(data) as temporary, temporary.open("wb") as stream:
            move_weights_out(constants, stream, data.name, source=source)
        source = None
    try:
        with atomic_path(path) as temporary:
            with temporary.open("wb") as stream:
                for part in encoded_graph(model, source):
                    stream.write(part)
            yield temporary
    except BaseException:
        if data is not None and not existed:
            data.unlink()
        raise
    for earlier in path.parent.glob(f"{glob.escape(path.name)}.{'[0-9a-f]' * _HASH_DIGITS}.data"):
        if earlier != data:
            earlier.unlink()


def move_weights_out(
    constants: Sequence[onnx.TensorProto], stream: BinaryIO, name: str, *, source: Path | None = None
) -> None:
    """Write large tensors to a file, aligned to pages, and leave references to it in their place.

    Args:
        constants: of a graph.
        stream: the file, empty.
        name: what the file will be called, beside the graph.
        source: file that the graph is an outline of; not needed for it any more afterwards.
    """
    for tensor in constants:
        if (size := constant_size(tensor, source)) < _SMALLEST_EXTERNAL_TENSOR:
            if is_reference(tensor, source):
                tensor.CopyFrom(with_values(tensor, source))
            continue
        stream.write(b"\0" * (-stream.tell() % _ALIGNMENT))
        offset = stream.tell()
        for part in constant_bytes(tensor, source):
            stream.write(part)
        refer(tensor, name, offset=offset, length=size)


def _hash_weights(constants: Sequence[onnx.TensorProto], source: Path | None) -> str:
    digest = hashlib.sha256()
    for tensor in constants:
        digest.update(f"{tensor.name} {tensor.data_type} {list(tensor.dims)}\n".encode())
        for part in constant_bytes(tensor, source):
            digest.update(part)
    return digest.hexdigest()[:_HASH_DIGITS]
