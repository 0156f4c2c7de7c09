"""A finished graph as a message, and the hash it has once it is written."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
import onnx_ir as ir
from onnx_ir.passes import common

from deploy.graphs.graph_writing import checked_before_replacing
from deploy.graphs.model_hash import model_sha256

_PRODUCER = "quietformer"


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """The finished graph as a message, with the shape of every tensor and nothing that names the exporter."""
    model.producer_name = _PRODUCER
    model.producer_version = None
    model.graph.name = _PRODUCER
    common.ShapeInferencePass()(model)
    proto: onnx.ModelProto = ir.to_proto(model)
    return proto


def written_sha256(model: onnx.ModelProto) -> str:
    """Hash that :func:`deploy.graphs.model_hash.model_sha256` gives for the graph once it is written, whatever its name."""
    with TemporaryDirectory(prefix="quietformer-") as folder:
        path = Path(folder) / "model.onnx"
        with checked_before_replacing(model, path):
            pass
        return model_sha256(path)
