"""Writing a graph: deterministic bytes, large weights in a file of their own, and nothing replaced before it is checked."""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx
from onnx.external_data_helper import set_external_data

from deploy.files import atomic_path

EXTERNAL_DATA_LIMIT = 1_800_000_000
"""Bytes of weights above which they leave the ONNX file, whose own limit is 2 GiB."""
_SMALLEST_EXTERNAL_TENSOR = 1024
_ALIGNMENT = 4096
_HASH_DIGITS = 16


@contextmanager
def checked_before_replacing(model: onnx.ModelProto, path: Path) -> Iterator[Path]:
    """Write ``model`` beside ``path``, hand the written file out for checks, then put it in place.

    Weights above ``EXTERNAL_DATA_LIMIT`` go into ``<name>.<hash of the weights>.data`` and out of ``model``. The hash in
    the name lets an earlier graph keep its own weights until the new graph has taken its place, which no fixed name could:
    a run that is killed leaves either graph whole. An error leaves every earlier file untouched.
    """
    data, existed = None, False
    if sum(len(tensor.raw_data) for tensor in model.graph.initializer) > EXTERNAL_DATA_LIMIT:
        data = path.with_name(f"{path.name}.{_hash_weights(model)}.data")
        existed = data.exists()
        _move_weights_out(model, data)
    try:
        with atomic_path(path) as temporary:
            temporary.write_bytes(model.SerializeToString(deterministic=True))
            yield temporary
    except BaseException:
        if data is not None and not existed:
            data.unlink()
        raise
    for earlier in path.parent.glob(f"{glob.escape(path.name)}.{'[0-9a-f]' * _HASH_DIGITS}.data"):
        if earlier != data:
            earlier.unlink()


def _move_weights_out(model: onnx.ModelProto, data: Path) -> None:
    """Write large tensors to ``data`` and leave references to it in ``model``."""
    with atomic_path(data) as temporary, temporary.open("wb") as stream:
        for tensor in model.graph.initializer:
            if len(tensor.raw_data) < _SMALLEST_EXTERNAL_TENSOR:
                continue
            stream.write(b"\0" * (-stream.tell() % _ALIGNMENT))
            set_external_data(tensor, data.name, offset=stream.tell(), length=len(tensor.raw_data))
            stream.write(tensor.raw_data)
            tensor.data_location = onnx.TensorProto.EXTERNAL
            tensor.ClearField("raw_data")


def _hash_weights(model: onnx.ModelProto) -> str:
    digest = hashlib.sha256()
    for tensor in model.graph.initializer:
        digest.update(f"{tensor.name} {tensor.data_type} {list(tensor.dims)}\n".encode())
        digest.update(tensor.raw_data)
    return digest.hexdigest()[:_HASH_DIGITS]
