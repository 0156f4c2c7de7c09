"""From what a user writes to engines, with real builds of TensorRT-RTX."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from deploy.backends.engine_report import EngineReport
from quietformer.cli import app
from quietformer.engine_build import EngineWishes
from quietformer.engine_forms import build_forms
from quietformer.progress import progress
from tests.deploy.calibrated import quantized
from tests.deploy.graphs.test_float16 import both
from tests.deploy.runtime_doubles import HostDriver, use_gpu
from tests.deploy.tensorrt_doubles import make_double

SHAPES = ("--opt-shapes", "1x16", "--max-shapes", "4x24")


def test_one_command_builds_a_graph_and_its_integers(tmp_path: Path) -> None:
    told = _forms(tmp_path)
    assert told.exit_code == 0, told.output
    reports = {name: EngineReport.load(tmp_path / "out" / name) for name in ("float16", "int8", "fp8")}
    assert reports["float16"].precision == "float16"
    assert reports["float16"].eight_bit_share == 0
    assert reports["int8"].precision == "int8 + float16"
    assert reports["int8"].eight_bit_share > 0.3
    assert (
        f"{reports['int8'].eight_bit_share:.0%} of the weights in INT8, for SM 7.5, 8.0, 8.6, 8.9, 12.0" in told.output
    )

    assert reports["fp8"].precision == "float8 + float16"
    assert reports["fp8"].eight_bit_share == reports["int8"].eight_bit_share
    assert "of the weights in FP8, for SM 8.9, 12.0" in told.output


def _forms(tmp_path: Path, *options: str) -> Result:
    _, graph, cache = both(tmp_path)
    cache.save(tmp_path / "calibration.json")
    arguments = ["--calibration", str(tmp_path / "calibration.json"), "--out", str(tmp_path / "out")]
    return CliRunner().invoke(app, ["build", str(graph), *arguments, *SHAPES, *options])


def test_targets_without_fp8_get_no_fp8_engine_and_the_reason_is_told(tmp_path: Path) -> None:
    told = _forms(tmp_path, "--compute-capability", "8.0")
    assert told.exit_code == 0, told.output
    assert "build: no FP8 engine: SM 8.0 has no FP8: it begins with SM 8.9" in told.stderr
    assert not (tmp_path / "out" / "fp8").exists()


def test_of_several_targets_those_with_fp8_get_it(tmp_path: Path) -> None:
    told = _forms(tmp_path, "--compute-capability", "8.0", "--compute-capability", "8.9")
    assert told.exit_code == 0, told.output
    assert EngineReport.load(tmp_path / "out" / "int8").compute_capabilities == ["8.0", "8.9"]
    assert EngineReport.load(tmp_path / "out" / "fp8").compute_capabilities == ["8.9"]


@pytest.mark.parametrize(("capability", "folders"), [("8.9", {"float16", "int8", "fp8"}), ("8.6", {"float16", "int8"})])
def test_tensorrt_makes_fp8_where_the_gpu_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capability: str, folders: set[str]
) -> None:
    use_gpu(monkeypatch, HostDriver(capability=capability), make_double("11.4.0.106"))
    told = _forms(tmp_path, "--backend", "tensorrt")
    assert told.exit_code == 0, told.output
    assert {folder.name for folder in (tmp_path / "out").iterdir()} == folders


def test_a_quantized_graph_is_not_quantized_again(tmp_path: Path) -> None:
    graph = quantized(tmp_path, "tensorrt")
    with progress("build") as job, pytest.raises(ValueError, match="is quantized; --calibration quantizes a float"):
        build_forms(graph, tmp_path / "none.json", tmp_path / "out", EngineWishes(), force=False, job=job)
    assert not (tmp_path / "out").exists()
