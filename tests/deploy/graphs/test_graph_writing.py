"""Writing: large weights beside the graph, and earlier files untouched until the new graph is in place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from deploy.graphs import graph_writing
from deploy.graphs.graph_writing import checked_before_replacing


def _model(value: float) -> onnx.ModelProto:
    weight = onnx.numpy_helper.from_array(np.full((64, 64), value, dtype=np.float32), "w")
    small = onnx.numpy_helper.from_array(np.array(1.0, dtype=np.float32), "one")
    graph = onnx.parser.parse_graph("g (float[B,64] x) => (float[B,64] y) { m = MatMul(x, w)  y = Add(m, one) }")
    graph.initializer.extend([weight, small])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)


def _output(path: Path) -> float:
    (y,) = onnxruntime.InferenceSession(path).run(None, {"x": np.ones((1, 64), dtype=np.float32)})
    return float(np.asarray(y)[0, 0])


def _write(path: Path, value: float) -> None:
    with checked_before_replacing(_model(value), path) as written:
        assert _output(written) == 64 * value + 1
        assert not path.exists() or _output(path) != _output(written)


@pytest.fixture
def low_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_writing, "EXTERNAL_DATA_LIMIT", 1000)


def test_small_graphs_are_one_file(tmp_path: Path) -> None:
    _write(tmp_path / "model.onnx", 2.0)
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


@pytest.mark.usefixtures("low_limit")
def test_large_weights_lie_beside_the_graph(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    _write(path, 2.0)
    (data,) = tmp_path.glob("model.onnx.*.data")
    assert data.stat().st_size == 64 * 64 * 4
    assert path.stat().st_size < 1000
    assert _output(path) == 129
    onnx.checker.check_model(str(path), full_check=True)


@pytest.mark.usefixtures("low_limit")
def test_replacing_a_graph_takes_its_weights_along(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    _write(path, 2.0)
    _write(path, 3.0)
    assert _output(path) == 193
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.usefixtures("low_limit")
@pytest.mark.parametrize("value", [2.0, 3.0])
def test_an_error_during_the_checks_keeps_the_earlier_graph_whole(tmp_path: Path, value: float) -> None:
    path = tmp_path / "model.onnx"
    _write(path, 2.0)
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(ValueError, match="no good"), checked_before_replacing(_model(value), path):
        raise ValueError("no good")
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.usefixtures("low_limit")
def test_weights_are_aligned_to_pages(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    model = _model(2.0)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((5, 77), np.float32), "other"))
    with checked_before_replacing(model, path):
        pass
    offsets = [
        int(entry.value)
        for tensor in onnx.load(path, load_external_data=False).graph.initializer
        for entry in tensor.external_data
        if entry.key == "offset"
    ]
    assert offsets == [0, 64 * 64 * 4]
    assert all(offset % 4096 == 0 for offset in offsets)


@pytest.mark.usefixtures("low_limit")
def test_a_killed_process_leaves_the_earlier_graph_whole_and_the_next_one_tidies_up(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    _write(path, 2.0)
    code = (
        "import os, sys; from pathlib import Path; from deploy.graphs import graph_writing; "
        "from tests.deploy.graphs.test_graph_writing import _model; graph_writing.EXTERNAL_DATA_LIMIT = 1000\n"
        "with graph_writing.checked_before_replacing(_model(3.0), Path(sys.argv[1])): os._exit(9)"
    )
    killed = subprocess.run([sys.executable, "-c", code, path], check=False, cwd=Path(__file__).parents[3])
    assert killed.returncode == 9
    assert len(list(tmp_path.glob("model.onnx.*.data"))) == 2
    assert _output(path) == 129
    _write(path, 4.0)
    assert len(list(tmp_path.glob("model.onnx.*.data"))) == 1
