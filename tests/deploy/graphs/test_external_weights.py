"""Graphs whose weights lie beside them, through every later stage; the limit is lowered to a kilobyte."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from deploy.backends.engine_builder import build_engine
from deploy.backends.opening import open_backend
from deploy.calibration.calibrate import calibrate
from deploy.graphs import graph_writing
from deploy.graphs.graph_info import GraphInfo
from deploy.graphs.graph_structure import external_files, read_structure, stored_bytes
from deploy.graphs.graph_writing import checked_before_replacing
from deploy.graphs.model_hash import model_sha256
from deploy.quantization.lint import lint
from deploy.quantization.quantize import quantize
from export.graph_files import to_proto, written_sha256
from export.half_precision import half_graph
from tests.deploy.encoder_graph import EncoderRecipe, encoder, feeds


@pytest.fixture(autouse=True)
def low_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_writing, "EXTERNAL_DATA_LIMIT", 1000)


def finished() -> onnx.ModelProto:
    return to_proto(ir.from_proto(encoder(EncoderRecipe(gate="mlp"))))


def write(model: onnx.ModelProto, path: Path) -> Path:
    with checked_before_replacing(model, path):
        pass
    return path


def whole(path: Path, folder: Path) -> Path:
    """The same graph in one file."""
    out = folder / f"whole.{path.name}"
    onnx.save(onnx.load(path), out)
    return out


def quantized(folder: Path) -> tuple[Path, Path, Path]:
    """Float graph, its integers, and the integers of its float16 form, all with weights beside them."""
    path = write(finished(), folder / "model.onnx")
    proto = finished()
    half = write(half_graph(proto, GraphInfo.read(proto, name="encoder")), folder / "model.fp16.onnx")
    cache = calibrate(path, [feeds()], method="minmax", data={"kind": "test"}, seed=0)
    out, half_out = folder / "model.int8.onnx", folder / "model.fp16.int8.onnx"
    quantize(path, cache, out)
    quantize(half, cache, half_out)
    return path, out, half_out


def test_the_hash_follows_the_weights_and_not_the_name(tmp_path: Path) -> None:
    path, other = write(finished(), tmp_path / "a.onnx"), write(finished(), tmp_path / "b.onnx")
    assert external_files(read_structure(path)) != external_files(read_structure(other))
    assert model_sha256(path) == model_sha256(other) == written_sha256(finished())
    (data,) = tmp_path.glob("b.onnx.*.data")
    content = bytearray(data.read_bytes())
    content[5] ^= 1
    data.write_bytes(content)
    assert model_sha256(path) != model_sha256(other)
    data.unlink()
    with pytest.raises(FileNotFoundError, match=r"keeps weights in b\.onnx\."):
        model_sha256(other)


def test_integers_of_such_graphs_lie_beside_them_too_and_are_clean(tmp_path: Path) -> None:
    for path in quantized(tmp_path)[1:]:
        (location,) = external_files(read_structure(path))
        assert location.startswith(f"{path.name}.")
        assert stored_bytes(path) == path.stat().st_size + (tmp_path / location).stat().st_size
        onnx.checker.check_model(path, full_check=True)
        assert lint(path, "tensorrt") == []
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_backends_answer_as_with_the_weights_inside(tmp_path: Path, backend: str) -> None:
    inputs = feeds(batch=3, length=9)
    for path in quantized(tmp_path):
        answers = []
        for source in (path, whole(path, tmp_path)):
            with open_backend(backend, source, precision="f32" if backend == "openvino" else None) as opened:
                answers.append(opened.infer(inputs)["hidden"])
                opened.fix_shapes(inputs)
                answers.append(opened.infer(inputs)["hidden"])
        beside, beside_fixed, inside, inside_fixed = answers
        assert np.isfinite(beside).all()
        assert np.abs(inside - beside).max() < 1e-4
        assert np.abs(inside_fixed - beside_fixed).max() < 1e-4
        if opened.precision.startswith("int8 grid"):
            # Sums in float32 differ between shapes, and a value on the edge of a step may fall on its other side.
            assert np.mean(np.abs(beside_fixed - beside)) < 1e-3
        else:
            assert np.abs(beside_fixed - beside).max() < 1e-4


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_weights_that_are_not_there_are_named(tmp_path: Path, backend: str) -> None:
    path = write(finished(), tmp_path / "model.onnx")
    (data,) = tmp_path.glob("*.data")
    data.unlink()
    with pytest.raises(FileNotFoundError, match=data.name):
        open_backend(backend, path)


def test_tensorrt_rtx_builds_from_weights_beside_the_graph(tmp_path: Path) -> None:
    _, out, half_out = quantized(tmp_path)
    for path in (out, half_out):
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), (1, 16))
        report = build_engine(
            path,
            tmp_path / path.stem,
            compute_capabilities=("8.9",),
            min_shapes=shapes,
            opt_shapes=shapes,
            max_shapes=shapes,
        )
        assert report.onnx_bytes == stored_bytes(path) > path.stat().st_size
        assert report.onnx_sha256 == model_sha256(path)
