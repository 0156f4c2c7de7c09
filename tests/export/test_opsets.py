"""What every accepted operator set is good for after the export: integers, float16, ONNX Runtime, TensorRT-RTX's parser."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from deploy.calibration.calibrate import calibrate
from deploy.graphs.graph_info import read_info
from deploy.graphs.graph_writing import checked_before_replacing
from deploy.quantization.lint import lint
from deploy.quantization.quantize import quantize
from export.half_precision import half_graph
from export.parity import FLOAT16_TOLERANCE, open_session
from tests.export.conftest import Exported, ExportTiny
from tests.export.rtx_parser import refuse_unparsable
from tests.export.test_to_onnx import EXPORTS_OF_OPSETS
from tests.export.tiny_checkpoints import VOCAB_SIZE

LENGTH = 24
FIRST_WITH_FLOAT16_SCALES = 19


@pytest.fixture(params=EXPORTS_OF_OPSETS.items(), ids=lambda entry: str(entry[0]))
def exported(request: pytest.FixtureRequest, export_tiny: ExportTiny) -> Exported:
    opset, arguments = request.param
    return export_tiny(**arguments, opset=opset)


def _opset(path: Path) -> int:
    return int(onnx.load(path).opset_import[0].version)


def _feeds(path: Path, seed: int = 0) -> dict[str, np.ndarray]:
    ids = np.random.default_rng(seed).integers(4, VOCAB_SIZE, size=(2, LENGTH))
    arrays = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    arrays["attention_mask"][1, 9:] = 0
    types = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}
    return {entry.name: arrays[entry.name].astype(types[entry.type]) for entry in open_session(path).get_inputs()}


def _run(path: Path) -> np.ndarray:
    output: np.ndarray = open_session(path).run(None, _feeds(path))[0]
    return output


def _half(exported: Exported, folder: Path) -> Path:
    path = folder / "model.fp16.onnx"
    half = half_graph(onnx.load(exported.path), read_info(exported.path))
    with checked_before_replacing(half, path) as written:
        onnx.checker.check_model(written, full_check=True)
    return path


def test_float_and_integer_graphs_of_every_opset_run_andrefuse_unparsable(exported: Exported, tmp_path: Path) -> None:
    out = tmp_path / "int8.onnx"
    cache = calibrate(exported.path, [_feeds(exported.path)], method="minmax", data={"kind": "test"}, seed=0)
    summary = quantize(exported.path, cache, out)
    assert _opset(out) == _opset(exported.path) == exported.report.opset
    assert summary.weights["linear"] >= 6
    onnx.checker.check_model(out, full_check=True)
    assert lint(out, "tensorrt") == []
    expected, actual = _run(exported.path), _run(out)
    assert 0 < np.abs(actual - expected).mean() < 0.2 * np.abs(expected).max()
    for path in (exported.path, out):
        refuse_unparsable(path)


def test_float16_graphs_of_every_opset_run_and_parse_and_take_integers_from_19_on(
    exported: Exported, tmp_path: Path
) -> None:
    half = _half(exported, tmp_path)
    expected = _run(exported.path)
    assert 0 < np.abs(_run(half) - expected).max() < FLOAT16_TOLERANCE * np.abs(expected).max()
    refuse_unparsable(half)
    out = tmp_path / "int8.onnx"
    cache = calibrate(exported.path, [_feeds(exported.path)], method="minmax", data={"kind": "test"}, seed=0)
    if exported.report.opset < FIRST_WITH_FLOAT16_SCALES:
        with pytest.raises(ValueError, match="scales cannot be float16"):
            quantize(half, cache, out)
        return
    quantize(half, cache, out)
    assert lint(out, "tensorrt") == []
    assert np.isfinite(_run(out)).all()
    refuse_unparsable(out)
