"""Writing a graph: deterministic bytes, large weights in a file of their own, and nothing replaced before it is checked."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
import onnx_ir as ir
from onnx.external_data_helper import set_external_data
from onnx_ir.passes import common

from deploy.files import atomic_path
from deploy.model_hash import model_sha256

EXTERNAL_DATA_LIMIT = 1_800_000_000
"""Bytes of weights above which they leave the ONNX file, whose own limit is 2 GiB."""
_SMALLEST_EXTERNAL_TENSOR = 1024
_ALIGNMENT = 4096
_PRODUCER = "quietformer"
_HASH_DIGITS = 16


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """The finished graph as a message, with the shape of every tensor and nothing that names the exporter."""
    model.producer_name = _PRODUCER
    model.producer_version = None
    model.graph.name = _PRODUCER
    common.ShapeInferencePass()(model)
    proto: onnx.ModelProto = ir.to_proto(model)
    return proto


@contextmanager
def checked_before_replacing(model: onnx.ModelProto, path: Path) -> Iterator[Path]:
    """Write ``model`` beside ``path``, hand the written file out for checks, then put it in place.

    Weights above ``EXTERNAL_DATA_LIMIT`` go into ``<name>.<hash of the weights>.data``, so that an earlier graph keeps
    its own weights until the new graph has taken its place. An error leaves every earlier file untouched.
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
    for earlier in path.parent.glob(f"{path.name}.{'[0-9a-f]' * _HASH_DIGITS}.data"):
        if earlier != data:
            earlier.unlink()


def written_sha256(model: onnx.ModelProto) -> str:
    """Hash that :func:`deploy.model_hash.model_sha256` gives for the graph once it is written, whatever its name."""
    with TemporaryDirectory(prefix="quietformer-") as folder:
        path = Path(folder) / "model.onnx"
        with checked_before_replacing(model, path):
            pass
        return model_sha256(path)


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
