"""Real TensorRT-RTX builds on a machine without a GPU, and what the parser refuses."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import onnx
import pytest

from deploy.backends.engine_builder import NOT_RUN, build_engine
from deploy.backends.engine_report import EngineReport
from deploy.backends.engine_settings import EngineSettings
from deploy.backends.tensorrt_dialect import load_dialect
from deploy.files import sha256_file
from deploy.graphs.model_hash import model_sha256
from deploy.graphs.shapes import parse_shapes
from tests.deploy.calibrated import quantized
from tests.deploy.encoder_graph import EncoderRecipe

SIZES: dict[str, tuple[int | str, ...]] = dict.fromkeys(
    ("input_ids", "attention_mask", "token_type_ids"), ("batch", "length")
)


def _build(
    model: Path,
    out: Path,
    *,
    force: bool = False,
    targets: Sequence[str] | None = ("8.0", "8.9"),
    low: str = "1x1",
    high: str = "4x24",
    settings: EngineSettings | None = None,
    progress: Callable[[str], None] | None = None,
    steps: Callable[[int, int, str], None] | None = None,
) -> EngineReport:
    return build_engine(
        model,
        out,
        compute_capabilities=targets,
        min_shapes=parse_shapes(low, SIZES),
        opt_shapes=parse_shapes("1x16", SIZES),
        max_shapes=parse_shapes(high, SIZES),
        settings=settings,
        force=force,
        progress=progress,
        steps=steps,
    )


@pytest.mark.parametrize(
    "recipe",
    [
        EncoderRecipe(gate="mlp"),
        EncoderRecipe(softmax="folded", gate="linear"),
        EncoderRecipe(softmax="literal", head=True),
    ],
)
def test_the_tensorrt_profile_builds_for_two_targets(tmp_path: Path, recipe: EncoderRecipe) -> None:
    model = quantized(tmp_path, "tensorrt", recipe)
    report = _build(model, tmp_path / "engine")
    engine = tmp_path / "engine" / "model.engine"
    assert report.engine_bytes == engine.stat().st_size > 1000
    assert report.engine_sha256 == sha256_file(engine)
    assert report.onnx_sha256 == model_sha256(model)
    assert report.compute_capabilities == ["8.0", "8.9"]
    assert report.profile["input_ids"] == {"min": [1, 1], "opt": [1, 16], "max": [4, 24]}
    assert report.not_done == NOT_RUN
    assert json.loads((tmp_path / "engine" / "engine.json").read_text()) == asdict(report)
    assert EngineReport.load(tmp_path / "engine") == report
    assert report.precision == "int8 + float32"
    assert report.products["int8 x int8"] > 0
    assert 0 < report.eight_bit_share < 1
    assert sum(report.layers.values()) == report.num_layers


@pytest.mark.parametrize("profile", ["ort", "paper"])
def test_unsigned_integers_are_refused_with_node_operator_and_reason(tmp_path: Path, profile: str) -> None:
    model = quantized(tmp_path, profile)
    with pytest.raises(
        ValueError, match=r"node '.+/QuantizeLinear': quantized to uint8; .*; quantize with --profile tensorrt"
    ) as e:
        _build(model, tmp_path / "engine")
    assert "\n" not in str(e.value)
    assert not (tmp_path / "engine").exists()


def test_an_unsupported_operator_is_named(tmp_path: Path) -> None:
    model = onnx.load(quantized(tmp_path, "tensorrt"))
    model.opset_import.add(domain="com.microsoft", version=1)
    node = next(node for node in model.graph.node if node.op_type == "Gelu")
    node.op_type, node.domain = "FastGelu", "com.microsoft"
    onnx.save(model, tmp_path / "broken.onnx")
    with pytest.raises(
        ValueError, match=f"node '{node.name}': operator com.microsoft.FastGelu is not standard ONNX; export"
    ):
        _build(tmp_path / "broken.onnx", tmp_path / "engine")


def test_an_earlier_engine_stays_without_force(tmp_path: Path) -> None:
    model = quantized(tmp_path, "tensorrt")
    (tmp_path / "engine.json").write_text("mine")
    with pytest.raises(FileExistsError, match="--force"):
        _build(model, tmp_path)
    assert (tmp_path / "engine.json").read_text() == "mine"
    assert not (tmp_path / "model.engine").exists()
    _build(model, tmp_path, force=True)
    assert json.loads((tmp_path / "engine.json").read_text())["backend"] == "tensorrt-rtx"


def test_bad_targets_shapes_and_files_are_refused(tmp_path: Path) -> None:
    model = quantized(tmp_path, "tensorrt")
    with pytest.raises(ValueError, match=r"does not build for compute capability 9\.0; it builds for 7\.5, 8\.0"):
        _build(model, tmp_path / "engine", targets=["9.0"])
    with pytest.raises(ValueError, match="no compute capability"):
        _build(model, tmp_path / "engine", targets=[])
    with pytest.raises(ValueError, match="out of order: 2, 1, 4"):
        _build(model, tmp_path / "engine", low="2x1")
    with pytest.raises(FileNotFoundError, match="no ONNX file"):
        _build(tmp_path / "missing.onnx", tmp_path / "engine")
    assert not (tmp_path / "engine").exists()


@pytest.mark.parametrize("backend", ["tensorrt", "tensorrt-rtx"])
def test_a_missing_library_says_which_extra_installs_it(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    monkeypatch.setitem(sys.modules, backend.replace("-", "_"), None)
    with pytest.raises(ImportError, match=rf"^{backend} is not installed: pip install 'quietformer\[{backend}\]'$"):
        load_dialect(backend)


def test_targets_that_the_builder_refuses_are_left_out_of_the_usual_ones_and_told(tmp_path: Path) -> None:
    """Turing has no float32 product; the builder says so for the whole set, so one name must be taken out of it."""
    model = quantized(tmp_path, "tensorrt")
    report = _build(model, tmp_path / "engine", targets=None)
    assert report.compute_capabilities == ["8.0", "8.6", "8.9", "12.0"]
    assert "FP32 GEMM is not supported" in report.left_out["7.5"]
    with pytest.raises(ValueError, match=r"cannot build .*FP32 GEMM.*; leave this target out, or export with --dtype"):
        _build(model, tmp_path / "other", targets=["7.5", "8.9"])


def test_the_builder_counts_its_steps(tmp_path: Path) -> None:
    seen: list[tuple[int, int, str]] = []
    _build(quantized(tmp_path, "tensorrt"), tmp_path / "engine", steps=lambda *step: seen.append(step))
    assert len({phase for _, _, phase in seen}) > 1
    assert all(done <= total for done, total, _ in seen)
    assert any(done == total > 1 for done, total, _ in seen)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (EngineSettings(timing_cache=Path("t.cache")), "TensorRT-RTX has no timing cache"),
        (EngineSettings(hardware_compatibility="ampere+"), "no hardware compatibility level"),
        (EngineSettings(version_compatible=True), "no version-compatible engines"),
        (EngineSettings(optimization_level=6), "optimization level is 6; expected 0 to 5"),
        (EngineSettings(workspace_mib=0), "workspace is 0 MiB"),
        (EngineSettings(strip_plan=True), "cannot build .*; name one target alone"),
    ],
)
def test_settings_that_this_library_does_not_do_are_refused(
    tmp_path: Path, settings: EngineSettings, told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        _build(quantized(tmp_path, "tensorrt"), tmp_path / "engine", settings=settings)
    assert not (tmp_path / "engine").exists()


def test_settings_reach_the_report(tmp_path: Path) -> None:
    settings = EngineSettings(optimization_level=1, workspace_mib=64, verbosity="names")
    report = _build(quantized(tmp_path, "tensorrt"), tmp_path / "engine", settings=settings)
    assert (report.settings["optimization_level"], report.settings["verbosity"]) == (1, "names")


def test_a_range_beyond_the_positions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="max shape 4x25: length 25 is above the 24 positions"):
        _build(quantized(tmp_path, "tensorrt"), tmp_path / "engine", high="4x25")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_native_code_runs_ends_the_build(tmp_path: Path, number: signal.Signals) -> None:
    """Raised inside the builder's log callback, Ctrl-C would be lost and the build go on."""

    def interrupt(line: str) -> None:
        if line.startswith("building"):
            timer.start()

    class Stopped(Exception):  # noqa: N818 - what a handler of the command line would raise
        pass

    def handler(*_: object) -> None:
        raise Stopped

    timer = threading.Timer(0.2, signal.raise_signal, [number])
    earlier = signal.signal(number, handler)
    try:
        with pytest.raises(Stopped):
            _build(quantized(tmp_path, "tensorrt"), tmp_path / "engine", progress=interrupt)
    finally:
        timer.cancel()
        signal.signal(number, earlier)
    assert not (tmp_path / "engine").exists()
