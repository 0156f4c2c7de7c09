"""Real TensorRT-RTX builds on a machine without a GPU, and what the parser refuses."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import onnx
import pytest

from deploy.backends.rtx_engine import NOT_DONE, EngineReport, build_engine
from deploy.files import sha256_file
from deploy.model_hash import model_sha256
from deploy.shapes import parse_shapes
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
    targets: Sequence[tuple[int, int]] = ((8, 0), (8, 9)),
    low: str = "1x1",
    high: str = "4x24",
    progress: Callable[[str], None] | None = None,
) -> EngineReport:
    return build_engine(
        model,
        out,
        compute_capabilities=targets,
        min_shapes=parse_shapes(low, SIZES),
        opt_shapes=parse_shapes("1x16", SIZES),
        max_shapes=parse_shapes(high, SIZES),
        force=force,
        progress=progress,
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
    assert report.not_done == NOT_DONE
    assert json.loads((tmp_path / "engine" / "engine.json").read_text()) == asdict(report)


@pytest.mark.parametrize("profile", ["ort", "paper"])
def test_unsigned_integers_are_refused_with_node_operator_and_reason(tmp_path: Path, profile: str) -> None:
    model = quantized(tmp_path, profile)
    with pytest.raises(
        ValueError, match=r"cannot parse .* node '.+/QuantizeLinear', operator QuantizeLinear: .*[Zz]ero"
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
    with pytest.raises(ValueError, match=f"node '{node.name}', operator FastGelu: .*Plugin not found"):
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
        _build(model, tmp_path / "engine", targets=[(9, 0)])
    with pytest.raises(ValueError, match="no compute capability"):
        _build(model, tmp_path / "engine", targets=[])
    with pytest.raises(ValueError, match="out of order: 2, 1, 4"):
        _build(model, tmp_path / "engine", low="2x1")
    with pytest.raises(FileNotFoundError, match="no ONNX file"):
        _build(tmp_path / "missing.onnx", tmp_path / "engine")
    assert not (tmp_path / "engine").exists()


def test_a_missing_tensorrt_rtx_says_which_extra_installs_it() -> None:
    code = (
        "import sys; sys.modules['tensorrt_rtx'] = None\n"
        "try: import deploy.backends.rtx_engine\n"
        "except ImportError as error: print(error)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "tensorrt-rtx is not installed: pip install 'quietformer[tensorrt-rtx]'"


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
