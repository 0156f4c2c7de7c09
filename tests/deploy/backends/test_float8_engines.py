"""FP8 engines where a target has FP8, by real builds of TensorRT-RTX and on stand-ins of TensorRT; refused elsewhere, by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.backends.engine_builder import build_engine
from deploy.backends.engine_report import EngineReport
from deploy.backends.engine_targets import USUAL_TARGETS, has_float8_units, without_float8
from deploy.backends.tensorrt_gpu import TensorRtBackend
from deploy.graphs.shapes import Shapes
from deploy.measuring.gpu_verdict import GENERATIONS
from deploy.quantization.quantize import quantize
from tests.deploy.graphs.test_float16 import both
from tests.deploy.runtime_doubles import HostDriver, add_runtime, use_gpu
from tests.deploy.tensorrt_doubles import REMOVED, make_double

SHAPES: Shapes = dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), (1, 8))


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graph")
    _, half, cache = both(folder)
    quantize(half, cache, folder / "model.fp8.onnx", profile="fp8")
    return folder / "model.fp8.onnx"


def _build(
    graph: Path, out: Path, *, backend: str = "tensorrt-rtx", targets: tuple[str, ...] | None = None
) -> EngineReport:
    return build_engine(
        graph,
        out,
        backend=backend,
        compute_capabilities=targets,
        min_shapes=SHAPES,
        opt_shapes=SHAPES,
        max_shapes=dict.fromkeys(SHAPES, (4, 24)),
    )


def test_the_real_builder_takes_it_for_every_target_with_fp8_and_the_others_are_left_out(
    graph: Path, tmp_path: Path
) -> None:
    report = _build(graph, tmp_path / "engine")
    assert report.compute_capabilities == ["8.9", "12.0"]
    assert list(report.left_out) == ["7.5", "8.0", "8.6"]
    assert report.left_out["8.6"].startswith("SM 8.6 has no FP8: it begins with SM 8.9; INT8 runs there")
    assert report.precision == "float8 + float16"
    assert report.weights["float8"] > 0
    assert report.products["float8 x float8"] > 0
    assert "of the weights in FP8" in report.summary()


def test_a_named_target_without_fp8_is_refused(graph: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"SM 8\.0 has no FP8: it begins with SM 8\.9"):
        _build(graph, tmp_path / "engine", targets=("8.9", "8.0"))
    assert not (tmp_path / "engine").exists()


@pytest.mark.parametrize("version", ["10.12.0.36", "10.16.1.11", "11.4.0.106"])
def test_tensorrt_builds_and_runs_it_on_a_gpu_with_fp8_and_touches_nothing_removed(
    graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    driver, module = HostDriver(capability="8.9"), make_double(version)
    add_runtime(module, driver)
    use_gpu(monkeypatch, driver, module)
    report = _build(graph, tmp_path / "engine", backend="tensorrt")
    assert report.compute_capabilities == ["8.9"]
    assert not {name for name, _ in module.journal} & REMOVED
    with TensorRtBackend(tmp_path / "engine") as engine:
        assert engine.precision == "float8 + float16"
        assert engine.inspect().product_counts()["float8"] == report.products["float8 x float8"]


def test_tensorrt_on_a_gpu_without_fp8_is_refused_before_the_parser(
    graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = make_double("11.4.0.106")
    use_gpu(monkeypatch, HostDriver(name="NVIDIA A100", capability="8.0"), module)
    with pytest.raises(ValueError, match=r"SM 8\.0 has no FP8"):
        _build(graph, tmp_path / "engine", backend="tensorrt")
    assert not module.calls


def test_which_gpus_have_fp8_agrees_with_the_table_of_generations() -> None:
    assert {capability: has_float8_units(capability) for capability in GENERATIONS} == {
        capability: known.has_fp8 for capability, known in GENERATIONS.items()
    }
    assert without_float8(("8.9", "12.0"), may_drop=False) == {}
    assert list(without_float8(USUAL_TARGETS, may_drop=True)) == ["7.5", "8.0", "8.6"]
