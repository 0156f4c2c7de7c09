"""``gpu-check`` with stand-ins of driver and TensorRT whose engines run their graph on the CPU; nothing here ran on a GPU."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from quietformer.gpu_check import check, parts
from quietformer.progress import progress
from tests.deploy.runtime_doubles import HostDriver, add_runtime, use_gpu
from tests.deploy.tensorrt_doubles import make_double
from tests.quietformer.test_commands import invoke, refuse
from tests.quietformer.tiny_run import write_tiny_run

QUICK = ("--shapes", "1x16", "--seconds", 0.001, "--repeats", 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny sentence encoder with texts and pairs, and its graphs as the check makes them."""
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_run(folder)
    (folder / "graphs").mkdir()
    with progress("graphs") as job:
        parts.make_graphs(folder / "tiny-bert", folder / "texts.txt", folder / "graphs", job=job)
    return folder


@pytest.fixture(autouse=True)
def _graphs_are_made_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def copied(_checkpoint: Path, _data: object, out: Path, *, job: object) -> dict[str, Path]:
        shutil.copytree(folder / "graphs", out, dirs_exist_ok=True)
        return {"float32": out / "model.onnx", "float16": out / "model.fp16.onnx"}

    monkeypatch.setattr(check, "make_graphs", copied)


def _check(folder: Path, out: Path, *options: object) -> tuple[Result, dict[str, Any]]:
    told = invoke("gpu-check", folder / "tiny-bert", "--data", folder / "texts.txt", "--out", out, *QUICK, *options)
    return told, json.loads((out / "gpu-check.json").read_text())


def _use(monkeypatch: pytest.MonkeyPatch, *, capability: str = "8.9", version: str = "11.4.0.106") -> HostDriver:
    driver, module = HostDriver(capability=capability), make_double(version)
    add_runtime(module, driver)
    use_gpu(monkeypatch, driver, module)
    return driver


def test_one_command_builds_verifies_measures_and_writes_a_report(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _use(monkeypatch)
    told, found = _check(folder, tmp_path / "out", "--task-data", folder / "pairs.jsonl")
    assert told.exit_code == 0, told.output
    assert found["passed"] is True
    assert found["failures"] == {}
    assert list(found["engines"]) == ["float16", "int8", "fp8"]
    assert [one["artifact"] for one in found["agreements"]] == ["float16", "int8", "fp8"]
    assert all(one["largest_difference"] < 1e-3 for one in found["agreements"])
    assert found["accuracy"]["task"] == "sts"
    assert [row["precision"] for row in found["accuracy"]["rows"]] == [
        "float32", "float16", "int8 + float16", "float8 + float16",
    ]  # fmt: skip
    assert {report["mode"] for report in found["latency"]} == {
        f"{style}, {graph}" for style in ("per request", "back to back") for graph in ("CUDA graph", "no CUDA graph")
    }
    report = (tmp_path / "out" / "gpu-check.md").read_text()
    for line in ("# GPU check: NVIDIA L4, SM 8.9, CUDA 13.0", "**passed**", "## Engines", "INT8 is 1.00 to 1.00 times"):
        assert line in report


def test_a_step_that_fails_leaves_the_rest_and_exits_1(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = _use(monkeypatch, capability="8.6")
    driver.failing = "cuMemAlloc_v2"
    told, found = _check(folder, tmp_path / "out")
    assert told.exit_code == 1
    assert list(found["engines"]) == ["float16", "int8"]
    assert set(found["failures"]) == {"agreement of float16", "agreement of int8", "accuracy", "latency"}
    assert "error 2, out of memory" in found["failures"]["latency"]
    report = (tmp_path / "out" / "gpu-check.md").read_text()
    assert "> failed, latency: the CUDA driver refuses cuMemAlloc_v2" in report
    assert "**failed**" in report


def test_an_engine_that_computes_something_else_fails(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _use(monkeypatch)
    monkeypatch.setattr(check, "ALLOWED", dict.fromkeys(check.ALLOWED, -1.0))
    told, found = _check(folder, tmp_path / "out")
    assert told.exit_code == 1
    assert found["passed"] is False
    assert "gate failed: float16, int8, fp8: see " in told.stderr


def test_without_tensorrt_the_graphs_run_on_the_cuda_provider_and_the_report_says_so(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_gpu(monkeypatch, HostDriver())
    missing = ["TensorRT is not installed: …"]
    monkeypatch.setattr(check, "gpu_backend", lambda: (parts.CUDA_PROVIDER, missing))
    told, found = _check(folder, tmp_path / "out")
    # This machine's ONNX Runtime has no such provider, so each part ends with that; the graphs were made.
    assert told.exit_code == 1
    assert found["backend"] == "onnxruntime-cuda"
    assert found["notes"] == missing
    assert set(found["failures"]) == {
        "agreement of float32", "agreement of float16", "agreement of int8", "accuracy", "latency",
    }  # fmt: skip
    assert "has no CUDAExecutionProvider" in found["failures"]["latency"]
    assert (tmp_path / "out" / "model.int8.onnx").is_file()


def test_the_best_of_what_is_installed_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    import onnxruntime

    monkeypatch.setitem(sys.modules, "tensorrt", make_double("11.4.0.106"))
    assert parts.gpu_backend() == ("tensorrt", [])
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    assert parts.gpu_backend() == (
        "tensorrt-rtx", ["TensorRT is not installed: engines are those of TensorRT-RTX"],
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", None)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    backend, [note] = parts.gpu_backend()
    assert (backend, "says nothing of TensorRT's" in note) == ("onnxruntime-cuda", True)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(ImportError, match=r"nothing here runs on the GPU: pip install 'quietformer\[tensorrt\]'"):
        parts.gpu_backend()


def test_without_a_gpu_it_ends_with_one_line_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deploy.backends import cuda_devices

    monkeypatch.setattr(cuda_devices, "load_driver", lambda: None)
    told = refuse("gpu-check", tmp_path / "none", "--out", tmp_path / "out")
    assert told == "error: gpu-check needs an NVIDIA GPU: no CUDA driver library on this machine\n"
    assert not (tmp_path / "out").exists()


@pytest.mark.gpu
@pytest.mark.slow
def test_the_check_passes_on_a_gpu(folder: Path, tmp_path: Path) -> None:
    told, found = _check(folder, tmp_path / "out")
    assert told.exit_code == 0, told.output
    assert found["passed"] is True
