"""``bench`` and ``compare`` on engines, with stand-ins of driver and TensorRT whose engines run their graph on the CPU."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.deploy.clock_tool import clock_tool
from tests.deploy.runtime_doubles import HostDriver, add_runtime, use_gpu
from tests.deploy.tensorrt_doubles import make_double
from tests.quietformer.test_commands import invoke, refuse, succeed
from tests.quietformer.tiny_run import write_tiny_run

__all__ = ["clock_tool"]

NO_GPU = "runs on an NVIDIA GPU: "


@dataclass(frozen=True, kw_only=True)
class Engines:
    """Two engines of a tiny model, and what they were made from."""

    folder: Path
    pairs: Path
    float32: Path
    float16: Path
    int8: Path


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Float32 and float16 graph of a tiny encoder with its calibration."""
    folder = tmp_path_factory.mktemp("graphs")
    write_tiny_run(folder)
    options = ("--batches", 2, "--batch-size", 8, "--length", 16)
    succeed("export", folder / "tiny-bert", "--out", folder / "model.onnx")
    succeed("export", folder / "tiny-bert", "--out", folder / "model.fp16.onnx", "--dtype", "float16")
    succeed(
        "calibrate", folder / "model.onnx", "--data", folder / "texts.txt", "--out", folder / "cache.json", *options
    )
    return folder


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> HostDriver:
    """A machine with a GPU and TensorRT 11.4."""
    driver, module = HostDriver(), make_double("11.4.0.106")
    add_runtime(module, driver)
    use_gpu(monkeypatch, driver, module)
    return driver


@pytest.fixture
def engines(graphs: Path, gpu: HostDriver, tmp_path: Path) -> Engines:
    shapes = ("--opt-shapes", "1x16", "--max-shapes", "4x32")
    half = graphs / "model.fp16.onnx"
    calibration = ("--calibration", graphs / "cache.json")
    succeed("build", half, *calibration, "--out", tmp_path / "engines", "--backend", "tensorrt", *shapes)
    return Engines(
        folder=tmp_path / "engines",
        pairs=graphs / "pairs.jsonl",
        float32=graphs / "model.onnx",
        float16=tmp_path / "engines" / "float16",
        int8=tmp_path / "engines" / "int8",
    )


def test_bench_measures_engines_in_every_mode_and_shape_from_their_folders_alone(
    engines: Engines, tmp_path: Path
) -> None:
    json_file = tmp_path / "bench.json"
    shapes = ("--shapes", "1x16", "--shapes", "2x8")
    options = ("--backend", "tensorrt", "--seconds", 0.01, "--repeats", 1, *shapes)
    told = succeed("bench", engines.float16, engines.int8, *options, "--json", json_file)
    reports = json.loads(json_file.read_text())
    assert [(report["batch_size"], report["length"], report["mode"]) for report in reports] == [
        (batch, length, f"{style}, {graph}")
        for batch, length in ((1, 16), (2, 8))
        for style in ("per request", "back to back")
        for graph in ("CUDA graph", "no CUDA graph")
    ]
    first = reports[0]
    assert [timing["name"] for timing in first["timings"]] == ["float16, tensorrt", "int8, tensorrt"]
    assert [timing["precision"] for timing in first["timings"]] == ["float16", "int8 + float16"]
    assert first["timings"][1]["products"]["int8"] > 0
    assert first["timings"][1]["device"]["gpu_compute_ms"]["median"] == pytest.approx(2.0, rel=1e-4)
    assert first["gpu"] == {"device": "NVIDIA L4, SM 8.9", "driver": "CUDA 13.0"}
    assert first["clocks"] is None
    assert "not worth it: INT8 is 1.00 to 1.00 times as fast as float16" in told.stdout
    assert "GPU compute" in told.stdout


def test_bench_tells_the_clocks_of_the_gpu_meanwhile(engines: Engines, clock_tool: Path, tmp_path: Path) -> None:
    json_file = tmp_path / "bench.json"
    options = ("--backend", "tensorrt", "--shapes", "1x16", "--seconds", 0.01, "--repeats", 1, "--json", json_file)
    told = succeed("bench", engines.float16, engines.int8, *options)
    first = json.loads(json_file.read_text())[0]
    assert first["clocks"]["sm_mhz"] == [345, 1597, 1980]
    assert first["clocks"]["held_back"] == {"software power cap": 0.5}
    assert "SM clock 1597 MHz (345 to 1980 of 1980), memory 2619 MHz, up to 71 °C" in " ".join(told.stdout.split())
    assert "warning: GPU clocks were held back in 50% of 4 samples: software power cap" in told.stderr


def test_compare_takes_engines_by_the_backend_alone(engines: Engines, tmp_path: Path) -> None:
    task = ("--task", "sts", "--data", engines.pairs, "--max-drop", 1.0)
    json_file = tmp_path / "c.json"
    succeed(
        "compare", "--baseline", engines.float16, "--candidate", engines.int8, "--backend", "tensorrt", *task, "--json",
        json_file,
    )  # fmt: skip
    rows = json.loads(json_file.read_text())["rows"]
    assert [(row["backend"], row["precision"]) for row in rows] == [
        ("tensorrt", "float16"),
        ("tensorrt", "int8 + float16"),
    ]
    graph = engines.int8 / "model.int8.onnx"
    on_cpu = tmp_path / "cpu.json"
    succeed(
        "compare", "--baseline", engines.float32, "--candidate", graph, "--backend", "onnxruntime", *task, "--json", on_cpu
    )  # fmt: skip
    [_, cpu] = json.loads(on_cpu.read_text())["rows"]
    assert rows[1]["scores"] == pytest.approx(cpu["scores"], abs=1e-3)


def test_fidelity_compares_with_the_float_engine(engines: Engines, graphs: Path) -> None:
    arguments = ("--baseline", engines.float16, "--candidate", engines.int8, "--backend", "tensorrt")
    told = succeed("compare", *arguments, "--task", "fidelity", "--data", graphs / "texts.txt", "--limit", 20)
    assert "Spearman to float" in told.stdout


def test_an_int8_engine_is_no_baseline(engines: Engines) -> None:
    arguments = ("--baseline", engines.int8, "--candidate", engines.int8, "--backend", "tensorrt")
    assert "is quantized (profile 'tensorrt'); expected the float model" in refuse(
        "compare", *arguments, "--task", "sts", "--data", engines.pairs
    )


class TestWithoutAGpu:
    """One line and exit code 2 before anything is opened: the artifacts are not even looked for."""

    @pytest.mark.parametrize("backend", ["tensorrt", "tensorrt-rtx", "onnxruntime-cuda"])
    def test_bench_and_compare_say_so(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, backend: str) -> None:
        from deploy.backends import cuda_devices

        monkeypatch.setattr(cuda_devices, "load_driver", lambda: None)
        told = f"error: backend '{backend}' {NO_GPU}no CUDA driver library on this machine\n"
        assert refuse("bench", tmp_path / "none", "--backend", backend) == told
        assert told == refuse(
            "compare", "--baseline", tmp_path / "a", "--candidate", tmp_path / "b", "--backend", backend,
            "--task", "sts", "--data", tmp_path / "none",
        )  # fmt: skip

    def test_an_engine_as_baseline_of_a_graph_says_so(self, engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
        from deploy.backends import cuda_devices

        monkeypatch.setattr(cuda_devices, "load_driver", lambda: None)
        arguments = ("--baseline", engines.float16, "--candidate", engines.float32, "--backend", "onnxruntime")
        assert f"backend 'tensorrt' {NO_GPU}" in refuse("compare", *arguments, "--task", "sts", "--data", engines.pairs)


class TestRefused:
    def test_an_engine_on_a_cpu_backend(self, engines: Engines) -> None:
        told = refuse("bench", engines.int8, "--shapes", "1x16")
        assert f"{engines.int8} is an engine, which backend 'openvino' does not run; pass --backend tensorrt" in told

    def test_a_graph_on_an_engine_backend(self, engines: Engines) -> None:
        told = refuse("bench", engines.float32, "--backend", "tensorrt", "--shapes", "1x16")
        assert "is a file; expected the folder that 'quietformer build' wrote" in told

    def test_a_folder_that_is_no_engine(self, gpu: HostDriver, tmp_path: Path) -> None:
        assert "holds no engine.json" in refuse("bench", tmp_path, "--backend", "tensorrt")

    def test_clocks_that_cannot_be_compared(self, engines: Engines) -> None:
        options = ("--backend", "tensorrt", "--backend", "onnxruntime", "--shapes", "1x16")
        assert "are timed by different clocks" in refuse("bench", engines.int8, *options)

    def test_threads_have_no_effect_on_a_gpu(self, engines: Engines) -> None:
        options = ("--backend", "tensorrt", "--threads", 2, "--shapes", "1x16")
        assert "threads has no effect on backend 'tensorrt'" in refuse("bench", engines.int8, *options)

    @pytest.mark.parametrize(
        ("change", "told"),
        [
            ({"version": "10.16.1.11"}, "was built with TensorRT 10.16.1.11, and 11.4.0.106 is installed"),
            ({"compute_capabilities": ["7.5"]}, "engine is for SM 7.5, and NVIDIA L4 has SM 8.9"),
            ({"engine_sha256": "0" * 64}, "was changed after it was built"),
            ({"engine_bytes": 10**6}, "is truncated"),
            ({"backend": "tensorrt-rtx"}, "holds an engine of tensorrt-rtx; expected one of tensorrt"),
        ],
    )
    def test_a_wrong_engine_by_name(self, engines: Engines, change: dict[str, object], told: str) -> None:
        path = engines.int8 / "engine.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
        assert told in refuse("bench", engines.float16, engines.int8, "--backend", "tensorrt", "--shapes", "1x16")
        arguments = ("--baseline", engines.float16, "--candidate", engines.int8, "--backend", "tensorrt")
        assert told in refuse("compare", *arguments, "--task", "sts", "--data", engines.pairs)

    def test_a_device_that_runs_out_of_memory(self, engines: Engines, gpu: HostDriver) -> None:
        gpu.failing = "cuMemAlloc_v2"
        done = invoke("bench", engines.int8, "--backend", "tensorrt", "--shapes", "1x16", "--seconds", 0.01)
        assert done.exit_code == 2
        assert "error: the CUDA driver refuses cuMemAlloc_v2 (error 2, out of memory)" in done.stderr
