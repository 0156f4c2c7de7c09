"""Switches that are ``auto``: timed for real on the CPU, on stand-ins of driver and TensorRT, and refused where nothing can time them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import onnx
import pytest

from deploy.backends import cuda_devices
from deploy.graphs.graph_structure import read_structure
from deploy.graphs.op_precision import op_precisions
from deploy.quantization.site_selection import RecordedChoice
from deploy.quantization.switch_decision import fastest
from tests.deploy.encoder_graph import MAX_T, V
from tests.deploy.graphs.test_float16 import both
from tests.deploy.runtime_doubles import Answers, HostDriver, add_runtime, use_gpu
from tests.deploy.tensorrt_doubles import make_double
from tests.deploy.word_tokenizer import FIRST_WORD, write_tokenizer
from tests.quietformer.test_commands import refuse, succeed
from tests.quietformer.tiny_run import write_tiny_run

LINEARS = 6
"""Of the one layer."""


@dataclass(frozen=True, kw_only=True)
class Graphs:
    """A small encoder with its ranges."""

    float32: Path
    float16: Path
    cache: Path


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Graphs:
    folder = tmp_path_factory.mktemp("graphs")
    full, half, cache = both(folder)
    write_tokenizer(folder / "tokenizer.json", words=V - FIRST_WORD)
    cache.save(folder / "cache.json")
    return Graphs(float32=full, float16=half, cache=folder / "cache.json")


def _eight_bit_products(graph: Path) -> int:
    return sum("int8" in product.precision for product in op_precisions(onnx.load(graph)))


@pytest.mark.parametrize(("profile", "backend"), [("tensorrt", "openvino"), ("ort", "onnxruntime")])
def test_a_processor_times_every_combination_and_the_graph_keeps_the_fastest(
    graphs: Graphs, tmp_path: Path, profile: str, backend: str
) -> None:
    out = tmp_path / "q.onnx"
    told = succeed(
        "quantize", graphs.float32, "--calibration", graphs.cache, "--out", out, "--profile", profile,
        "--bmms", "auto", "--residual-adds", "auto", "--timed-on", backend, "--seconds", 0.05,
    )  # fmt: skip
    recorded = RecordedChoice.read(read_structure(out))
    decision = recorded.decision
    assert decision is not None
    assert [tuple(timing.switches.values()) for timing in decision.timings] == [
        ("off", "off"), ("off", "on"), ("on", "off"), ("on", "on"),
    ]  # fmt: skip
    assert all(timing.median_ms and timing.median_ms > 0 for timing in decision.timings)
    assert (decision.backend, decision.measured) == (backend, f"batch 1, length {MAX_T}")
    assert decision.switches == fastest(decision.timings)
    assert (recorded.choice.bmms, recorded.choice.residual_adds) == tuple(decision.switches.values())
    assert f"bmms={decision.switches['bmms']} residual_adds=" in told.stdout
    assert "no findings" in succeed("lint", out, "--profile", profile).stdout
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> HostDriver:
    driver, module = HostDriver(), make_double("11.4.0.106")
    add_runtime(module, driver)
    use_gpu(monkeypatch, driver, module)
    return driver


def _faster_with_integers(answers: Answers) -> float:
    """Of a device on which every product in 8 bits saves time."""
    kinds = [layer["Inputs"][0]["Datatype"] for layer in answers.layers]
    return 4.0 - 0.3 * sum(kind in ("Int8", "FP8") for kind in kinds)


@pytest.mark.parametrize("gains", [True, False])
def test_engines_are_built_both_ways_and_the_faster_one_stays(
    graphs: Graphs, tmp_path: Path, gpu: HostDriver, monkeypatch: pytest.MonkeyPatch, gains: bool
) -> None:
    if gains:
        monkeypatch.setattr(gpu, "compute_cost", _faster_with_integers)
    options = ("--calibration", graphs.cache, "--backend", "tensorrt", "--opt-shapes", "1x16")
    succeed(
        "build",
        graphs.float16,
        *options,
        "--out",
        tmp_path / "e",
        "--max-shapes",
        "4x24",
        "--bmms",
        "auto",
        "--seconds",
        0.02,
    )
    for form in ("int8", "fp8"):
        facts = json.loads((tmp_path / "e" / form / "engine.json").read_text())["switch_decision"]
        assert facts["switches"] == {"bmms": "on" if gains else "off"}
        assert (facts["device"], facts["measured"]) == (
            "NVIDIA L4, SM 8.9", "batch 1, length 16, per request, CUDA graph",
        )  # fmt: skip
        off, on = facts["timings"]
        assert on["speed_up"][0] > 1.05 if gains else on["speed_up"][0] == pytest.approx(1.0)
        assert off["speed_up"] is None
    assert (_eight_bit_products(tmp_path / "e" / "int8" / "model.int8.onnx") > LINEARS) is gains


def test_switches_that_change_nothing_are_not_timed(graphs: Graphs, tmp_path: Path) -> None:
    told = succeed(
        "quantize", graphs.float32, "--calibration", graphs.cache, "--out", tmp_path / "q.onnx",
        "--gate-path", "auto", "--timed-on", "onnxruntime",
    )  # fmt: skip
    assert "gate_path=off: the graph has nothing that they would change" in told.stdout


class TestRefused:
    """Before any work: neither graph nor ranges are looked for."""

    @pytest.fixture(autouse=True)
    def _no_gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cuda_devices, "load_driver", lambda: None)

    @pytest.mark.parametrize(
        ("options", "told"),
        [
            (("--bmms", "auto"), "bmms is 'auto', which needs a device to time on: backend 'tensorrt' runs on an NVIDIA GPU"),
            (("--residual-adds", "auto", "--timed-on", "tensorrt-rtx"), "residual_adds is 'auto', which needs a device"),
            (("--bmms", "auto", "--timed-on", "tensorrt", "--profile", "ort"), "profile 'ort' makes no engines"),
            (("--bmms", "auto", "--timed-on", "onnxruntime", "--profile", "fp8"), "onnxruntime computes FP8 in float"),
            (("--bmms", "auto", "--profile", "paper", "--bits", "W6A8"), "W6A8 is simulated: its speed means nothing"),
            (("--timed-on", "openvino"), "--timed-on openvino has no effect: no switch is 'auto'"),
        ],
    )  # fmt: skip
    def test_quantize(self, tmp_path: Path, options: tuple[str, ...], told: str) -> None:
        nothing = tmp_path / "none"
        assert told in refuse("quantize", nothing, "--calibration", nothing, "--out", tmp_path / "q.onnx", *options)

    def test_build(self, tmp_path: Path) -> None:
        nothing = tmp_path / "none"
        for backend in ("tensorrt", "tensorrt-rtx"):
            options = ("--calibration", nothing, "--out", tmp_path / "e", "--backend", backend, "--bmms", "auto")
            assert f"which needs a device to time on: backend '{backend}'" in refuse("build", nothing, *options)
        assert "take --calibration" in refuse("build", nothing, "--out", tmp_path / "e", "--bmms", "on")

    def test_a_recipe(self, tmp_path: Path) -> None:
        recipe = write_tiny_run(tmp_path)
        told = refuse(
            "run", recipe, "--out", tmp_path / "run", "--set", "backend=tensorrt",
            "--set", "quantize.sites.tensorrt.bmms=auto",
        )  # fmt: skip
        assert "runs on an NVIDIA GPU" in told
        assert not (tmp_path / "run" / "manifest.json").exists()
