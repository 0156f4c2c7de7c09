"""From what a user writes to engines, with real builds of TensorRT-RTX."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from deploy.backends.engine_report import EngineReport
from quietformer.cli import app
from quietformer.engine_build import EngineWishes, build_pair
from quietformer.progress import progress
from tests.deploy.calibrated import quantized
from tests.deploy.graphs.test_float16 import both

SHAPES = ("--opt-shapes", "1x16", "--max-shapes", "4x24")


def test_one_command_builds_a_graph_and_its_integers(tmp_path: Path) -> None:
    _, graph, cache = both(tmp_path)
    cache.save(tmp_path / "calibration.json")
    arguments = [
        "build",
        str(graph),
        "--calibration",
        str(tmp_path / "calibration.json"),
        "--out",
        str(tmp_path / "out"),
    ]
    told = CliRunner().invoke(app, [*arguments, *SHAPES])
    assert told.exit_code == 0, told.output
    reports = {name: EngineReport.load(tmp_path / "out" / name) for name in ("float16", "int8")}
    assert reports["float16"].precision == "float16"
    assert reports["float16"].int8_share == 0
    assert reports["int8"].precision == "int8 + float16"
    assert reports["int8"].int8_share > 0.3
    assert f"{reports['int8'].int8_share:.0%} of the weights in INT8, for SM 7.5, 8.0, 8.6, 8.9, 12.0" in told.output


def test_a_quantized_graph_is_not_quantized_again(tmp_path: Path) -> None:
    graph = quantized(tmp_path, "tensorrt")
    with progress("build") as job, pytest.raises(ValueError, match="is quantized; --calibration quantizes a float"):
        build_pair(graph, tmp_path / "none.json", tmp_path / "out", EngineWishes(), force=False, job=job)
    assert not (tmp_path / "out").exists()
