"""The builder on stand-ins of TensorRT 10.12, 10.16 and 11.4: the right calls, and nothing that 11 took away."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from deploy.backends import engine_targets
from deploy.backends.cuda_devices import CudaDevice
from deploy.backends.engine_builder import build_engine
from deploy.backends.engine_report import EngineReport
from deploy.backends.engine_settings import EngineSettings
from deploy.graphs.shapes import parse_shapes
from tests.deploy.calibrated import quantized
from tests.deploy.tensorrt_doubles import PLAN_OF_GRAPH, REMOVED, make_double

VERSIONS = ("10.12.0.36", "10.16.1.11", "11.4.0.106")
GPU = CudaDevice(name="NVIDIA L4", compute_capability="8.9", memory_bytes=24 << 30, driver="13.0")
SIZES: dict[str, tuple[int | str, ...]] = dict.fromkeys(
    ("input_ids", "attention_mask", "token_type_ids"), ("batch", "length")
)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quantized(tmp_path_factory.mktemp("graph"), "tensorrt")


def _build(graph: Path, out: Path, settings: EngineSettings | None = None) -> EngineReport:
    return build_engine(
        graph,
        out,
        backend="tensorrt",
        min_shapes=parse_shapes("1x1", SIZES),
        opt_shapes=parse_shapes("1x16", SIZES),
        max_shapes=parse_shapes("4x24", SIZES),
        settings=settings,
    )


def _use(monkeypatch: pytest.MonkeyPatch, module: Any, *, devices: tuple[CudaDevice, ...] = (GPU,)) -> Any:
    monkeypatch.setitem(sys.modules, "tensorrt", module)
    monkeypatch.setattr(engine_targets, "cuda_devices", lambda: (list(devices), "" if devices else "no GPU present"))
    return module


@pytest.mark.parametrize("version", VERSIONS)
def test_the_builder_takes_the_right_calls_and_touches_nothing_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, graph: Path, version: str
) -> None:
    trt = _use(monkeypatch, make_double(version))
    settings = EngineSettings(
        optimization_level=4,
        workspace_mib=512,
        timing_cache=tmp_path / "kernels.cache",
        hardware_compatibility="ampere+",
        version_compatible=True,
        strip_plan=True,
    )
    (tmp_path / "kernels.cache").write_bytes(b"earlier")
    report = _build(graph, tmp_path / "engine", settings)
    assert (tmp_path / "engine" / "model.engine").read_bytes() == PLAN_OF_GRAPH + bytes(graph)
    assert (tmp_path / "kernels.cache").read_bytes() == b"earlier+timings"
    calls = dict(trt.calls)
    # Strongly typed: bit 1 in TensorRT 10, bit 0 in 11.
    assert calls["create_network"] == (2 if version.startswith("10.") else 1,)
    assert calls["set_memory_pool_limit"] == (trt.MemoryPoolType.WORKSPACE, 512 << 20)
    assert calls["set_shape"] == ("token_type_ids", (1, 1), (1, 16), (4, 24))
    flags = {arguments for name, arguments in trt.calls if name == "set_flag"}
    assert flags == {(trt.BuilderFlag.VERSION_COMPATIBLE,), (trt.BuilderFlag.STRIP_PLAN,)}
    assert trt.config.builder_optimization_level == 4
    assert trt.config.hardware_compatibility_level == trt.HardwareCompatibilityLevel.AMPERE_PLUS
    assert trt.config.profiling_verbosity == trt.ProfilingVerbosity.DETAILED
    assert not {name for name, _ in trt.journal} & REMOVED
    assert (report.version, report.device, report.driver) == (version, "NVIDIA L4", "13.0")
    assert report.compute_capabilities == ["8.9"]
    assert report.timing_cache is not None
    assert report.timing_cache["existed"]
    assert report.layers == {"HALF": 2}


@pytest.mark.parametrize("version", VERSIONS)
def test_without_settings_nothing_is_set_but_verbosity_shapes_and_progress(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, graph: Path, version: str
) -> None:
    trt = _use(monkeypatch, make_double(version))
    report = _build(graph, tmp_path / "engine")
    written = {name for name, value in trt.journal if value is not None}
    assert written == {"profiling_verbosity", "progress_monitor"}
    assert report.timing_cache is None


def test_a_double_raises_on_what_the_bindings_do_not_have() -> None:
    new, old = make_double("11.4.0.106"), make_double("10.16.1.11")
    for name in ("FP16", "INT8"):
        with pytest.raises(AttributeError):
            getattr(new.BuilderFlag, name)
        assert getattr(old.BuilderFlag, name) is not None
    with pytest.raises(AttributeError):
        new.config.int8_calibrator = object()


@pytest.mark.parametrize("version", VERSIONS)
def test_what_the_parser_refuses_is_told_with_node_operator_reason_and_advice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, graph: Path, version: str
) -> None:
    _use(monkeypatch, make_double(version, failure="Plugin not found,\nare the names correct?"))
    with pytest.raises(
        ValueError,
        match=r"TensorRT cannot parse .*: node 'encoder/Odd', operator Odd: Plugin not found, are .*; export with standard",
    ):
        _build(graph, tmp_path / "engine")


def test_a_builder_that_gives_no_plan_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, graph: Path) -> None:
    _use(monkeypatch, make_double("11.4.0.106", builds=False))
    with pytest.raises(ValueError, match=r"TensorRT cannot build .*: no reason given"):
        _build(graph, tmp_path / "engine")
    assert not (tmp_path / "engine").exists()


def test_without_a_gpu_no_object_of_tensorrt_is_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, graph: Path
) -> None:
    trt = _use(monkeypatch, make_double("11.4.0.106"), devices=())
    with pytest.raises(
        ValueError, match="builds on the GPU that the engine is for: no GPU present; --backend tensorrt-rtx"
    ):
        _build(graph, tmp_path / "engine")
    assert trt.calls == []


def test_tensorrt_takes_no_targets_and_must_be_new_enough(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, graph: Path
) -> None:
    _use(monkeypatch, make_double("11.4.0.106"))
    shapes = parse_shapes("1x16", SIZES)
    with pytest.raises(ValueError, match="builds for the GPU it runs on"):
        build_engine(
            graph,
            tmp_path,
            backend="tensorrt",
            compute_capabilities=("8.9",),
            min_shapes=shapes,
            opt_shapes=shapes,
            max_shapes=shapes,
        )
    old = type("module", (), {"__version__": "8.6.1", "NetworkDefinitionCreationFlag": type("F", (), {})})
    _use(monkeypatch, old)
    with pytest.raises(ValueError, match=r"TensorRT 8\.6\.1 has no strongly typed networks; 10\.12 or newer"):
        _build(graph, tmp_path / "engine")
