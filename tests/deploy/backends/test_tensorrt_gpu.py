"""Engines that cannot run here are refused by name before any runtime exists; the runner on a stand-in of driver and runtime."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deploy.backends import cuda_stream, engine_checks
from deploy.backends.cuda_devices import CudaDevice, cuda_devices
from deploy.backends.engine_builder import build_engine
from deploy.backends.opening import open_backend
from deploy.backends.tensorrt_gpu import TensorRtBackend
from deploy.files import sha256_file
from deploy.graphs.shapes import Shapes
from tests.deploy.calibrated import quantized
from tests.deploy.runtime_doubles import HostDriver, add_runtime
from tests.deploy.tensorrt_doubles import make_double

GPU = CudaDevice(name="NVIDIA L4", compute_capability="8.9", memory_bytes=24 << 30, driver="13.0")
OTHER_GPU = CudaDevice(name="NVIDIA T4", compute_capability="7.5", memory_bytes=16 << 30, driver="13.0")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real engine of TensorRT-RTX for SM 8.9."""
    folder = tmp_path_factory.mktemp("built")
    shapes: Shapes = dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), (1, 8))
    build_engine(
        quantized(folder, "tensorrt"),
        folder / "engine",
        compute_capabilities=("8.9",),
        min_shapes=shapes,
        opt_shapes=shapes,
        max_shapes=dict.fromkeys(shapes, (4, 24)),
    )
    return folder / "engine"


@pytest.fixture
def engine(built: Path, tmp_path: Path) -> Path:
    """A copy, described as an engine of TensorRT 11.4 with one input."""
    folder = tmp_path / "engine"
    folder.mkdir()
    (folder / "model.engine").write_bytes((built / "model.engine").read_bytes())
    (folder / "engine.json").write_text((built / "engine.json").read_text())
    _change(folder, backend="tensorrt", version="11.4.0.106")
    return folder


def _change(folder: Path, **values: Any) -> None:
    facts = json.loads((folder / "engine.json").read_text())
    facts.update(values)
    (folder / "engine.json").write_text(json.dumps(facts))


@pytest.fixture
def runtimes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """TensorRT 11.4 on a machine with a GPU of SM 8.9; lists the runtimes that were made."""
    driver, module = HostDriver(), make_double("11.4.0.106")
    made = add_runtime(module, driver)
    monkeypatch.setitem(sys.modules, "tensorrt", module)
    monkeypatch.setattr(engine_checks, "cuda_devices", lambda: ([GPU], ""))
    monkeypatch.setattr(cuda_stream, "load_driver", lambda: driver)
    yield made
    assert driver.capture is None


class TestRefusedBeforeAnyRuntime:
    def _refused(self, engine: Path, runtimes: list[str], told: str, error: type[Exception] = ValueError) -> None:
        with pytest.raises(error, match=told):
            open_backend("tensorrt", engine)
        assert runtimes == []

    def test_another_version(self, engine: Path, runtimes: list[str]) -> None:
        _change(engine, version="11.3.0.99")
        self._refused(
            engine, runtimes, r"built with TensorRT 11\.3\.0\.99, and 11\.4\.0\.106 is installed; build it ag"
        )
        _change(engine, version="10.16.1.11")
        self._refused(engine, runtimes, r"10\.16\.1\.11, .*; engines never pass from one major version to another")

    def test_a_newer_version_than_the_one_installed_even_where_versions_are_compatible(
        self, engine: Path, runtimes: list[str]
    ) -> None:
        facts = json.loads((engine / "engine.json").read_text())
        _change(engine, version="11.5.0.1", settings={**facts["settings"], "version_compatible": True})
        self._refused(engine, runtimes, r"11\.5\.0\.1")
        _change(engine, version="11.3.0.99")
        open_backend("tensorrt", engine).close()

    def test_another_device(self, engine: Path, runtimes: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(engine_checks, "cuda_devices", lambda: ([OTHER_GPU], ""))
        self._refused(engine, runtimes, r"engine is for SM 8\.9, and NVIDIA T4 has SM 7\.5; build it for this one")
        facts = json.loads((engine / "engine.json").read_text())
        _change(engine, settings={**facts["settings"], "hardware_compatibility": "ampere+"})
        self._refused(engine, runtimes, r"8\.9 \(ampere\+\), and NVIDIA T4 has SM 7\.5")

    def test_no_device(self, engine: Path, runtimes: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(engine_checks, "cuda_devices", lambda: ([], "no CUDA driver library on this machine"))
        self._refused(engine, runtimes, "TensorRT runs on an NVIDIA GPU: no CUDA driver library on this machine")

    def test_a_truncated_engine(self, engine: Path, runtimes: list[str]) -> None:
        plan = (engine / "model.engine").read_bytes()
        (engine / "model.engine").write_bytes(plan[:1000])
        self._refused(engine, runtimes, f"model.engine is truncated: 1000 bytes, expected {len(plan)}")

    def test_an_engine_that_was_changed_or_swapped(self, engine: Path, runtimes: list[str]) -> None:
        plan = bytearray((engine / "model.engine").read_bytes())
        plan[100] ^= 1
        (engine / "model.engine").write_bytes(plan)
        self._refused(engine, runtimes, "was changed after it was built: sha256 ")
        (engine / "model.engine").write_bytes(bytes(plan) + b"more")
        self._refused(engine, runtimes, "is not the engine that was built")

    def test_a_foreign_engine(self, engine: Path, runtimes: list[str], tmp_path: Path) -> None:
        _change(engine, backend="tensorrt-rtx")
        self._refused(engine, runtimes, "holds an engine of tensorrt-rtx; expected one of tensorrt")
        (engine / "engine.json").write_text("{}")
        self._refused(engine, runtimes, "has format None; expected 4")
        (engine / "engine.json").write_text("ftrt")
        self._refused(engine, runtimes, "engine.json is not JSON")
        (engine / "engine.json").unlink()
        self._refused(engine, runtimes, "is not an engine of 'quietformer build'", FileNotFoundError)
        self._refused(engine / "model.engine", runtimes, "is a file; expected the folder", NotADirectoryError)
        self._refused(tmp_path / "none", runtimes, "no engine folder", FileNotFoundError)

    def test_an_engine_that_is_not_there(self, engine: Path, runtimes: list[str]) -> None:
        (engine / "model.engine").unlink()
        self._refused(engine, runtimes, "names model.engine, which is not there", FileNotFoundError)

    def test_a_stripped_engine(self, engine: Path, runtimes: list[str]) -> None:
        facts = json.loads((engine / "engine.json").read_text())
        _change(engine, settings={**facts["settings"], "strip_plan": True})
        self._refused(engine, runtimes, "was built without its weights")

    def test_damaged_facts(self, engine: Path, runtimes: list[str]) -> None:
        facts = json.loads((engine / "engine.json").read_text())
        del facts["engine_sha256"]
        (engine / "engine.json").write_text(json.dumps(facts))
        self._refused(engine, runtimes, "is damaged: 'engine_sha256' is missing")


@pytest.mark.skipif(bool(cuda_devices()[0]), reason="this machine has a GPU")
def test_the_real_library_without_a_gpu_is_refused_and_the_interpreter_lives(built: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from deploy.backends.opening import open_backend\n"
        "try: open_backend('tensorrt-rtx', Path(sys.argv[1]))\n"
        "except ValueError as error: print(error)"
    )
    root = Path(__file__).parents[3]
    told = subprocess.run(
        [sys.executable, "-c", code, str(built)], capture_output=True, text=True, check=True, cwd=root
    ).stdout
    assert told.startswith("TensorRT-RTX runs on an NVIDIA GPU: ")


def _one_input(engine: Path) -> None:
    shape = {"min": [1, 1], "opt": [1, 8], "max": [4, 24]}
    _change(engine, inputs={"input_ids": ["batch", "length"]}, profile={"input_ids": shape}, graph_info=None)


def _ids(batch: int, length: int, seed: int = 0) -> dict[str, np.ndarray]:
    return {"input_ids": np.random.default_rng(seed).integers(0, 99, (batch, length))}


class TestRunner:
    def test_every_shape_in_the_range_is_answered_with_and_without_a_graph(
        self, engine: Path, runtimes: list[str]
    ) -> None:
        _one_input(engine)
        with open_backend("tensorrt", engine) as backend:
            driver: Any = vars(cuda_stream)["load_driver"]()
            for seed, (batch, length) in enumerate([(1, 8), (4, 24), (2, 3), (1, 8)]):
                feeds = _ids(batch, length, seed)
                np.testing.assert_array_equal(backend.infer(feeds)["output"], 2.0 * feeds["input_ids"])
            backend.fix_shapes(_ids(2, 5))
            launches = driver.calls.count("cuGraphLaunch")
            for seed in (7, 8):
                feeds = _ids(2, 5, seed)
                np.testing.assert_array_equal(backend.infer(feeds)["output"], 2.0 * feeds["input_ids"])
            assert driver.calls.count("cuGraphLaunch") == launches + 2
            for shape in ((3, 4), (2, 5), (4, 24)):
                feeds = _ids(*shape, seed=9)
                np.testing.assert_array_equal(backend.infer(feeds)["output"], 2.0 * feeds["input_ids"])
            assert driver.calls.count("cuGraphLaunch") == launches + 2
            assert backend.describe()["device"] == "NVIDIA L4, SM 8.9"
        assert runtimes == ["Runtime"]
        assert not driver.memory

    def test_the_engine_tells_what_ran_in_int8(self, engine: Path, runtimes: list[str]) -> None:
        _one_input(engine)
        with open_backend("tensorrt", engine) as backend:
            assert isinstance(backend, TensorRtBackend)
            assert backend.inspect().product_counts() == {"int8": 1}

    def test_outputs_are_arrays_of_their_own(self, engine: Path, runtimes: list[str]) -> None:
        _one_input(engine)
        with open_backend("tensorrt", engine) as backend:
            first = backend.infer(_ids(1, 8, 1))["output"]
            kept = first.copy()
            backend.infer(_ids(1, 8, 2))
            np.testing.assert_array_equal(first, kept)

    def test_shapes_outside_the_range_are_refused(self, engine: Path, runtimes: list[str]) -> None:
        _one_input(engine)
        with (
            open_backend("tensorrt", engine) as backend,
            pytest.raises(ValueError, match="'input_ids' has shape 5x8; the engine was built for 1x1 to 4x24"),
        ):
            backend.infer(_ids(5, 8))

    def test_a_plan_that_the_library_does_not_load_is_told_and_gives_the_device_back(
        self, engine: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        driver, module = HostDriver(), make_double("11.4.0.106")
        add_runtime(module, driver, loads=False)
        monkeypatch.setitem(sys.modules, "tensorrt", module)
        monkeypatch.setattr(engine_checks, "cuda_devices", lambda: ([GPU], ""))
        monkeypatch.setattr(cuda_stream, "load_driver", lambda: driver)
        with pytest.raises(ValueError, match=r"TensorRT does not load .*model\.engine"):
            open_backend("tensorrt", engine)
        assert driver.calls[-1] == "cuDevicePrimaryCtxRelease_v2"

    @pytest.mark.parametrize("function", ["cuMemAlloc_v2", "cuMemHostAlloc", "cuStreamCreate"])
    def test_a_call_that_the_driver_refuses_is_named(
        self, engine: Path, monkeypatch: pytest.MonkeyPatch, runtimes: list[str], function: str
    ) -> None:
        _one_input(engine)
        monkeypatch.setattr(cuda_stream, "load_driver", lambda: HostDriver(failing=function))
        with (
            pytest.raises(OSError, match=rf"refuses {function} \(error 2, out of memory\)"),
            open_backend("tensorrt", engine) as b,
        ):
            b.infer(_ids(1, 8))

    def test_threads_and_precision_have_no_effect_and_are_refused(self, engine: Path) -> None:
        with pytest.raises(ValueError, match="threads has no effect on backend 'tensorrt'"):
            open_backend("tensorrt", engine, threads=2)
        with pytest.raises(ValueError, match="precision has no effect on backend 'tensorrt'"):
            open_backend("tensorrt", engine, precision="float32")


def test_the_hash_in_the_facts_is_that_of_the_engine(built: Path) -> None:
    assert json.loads((built / "engine.json").read_text())["engine_sha256"] == sha256_file(built / "model.engine")


@pytest.mark.gpu
def test_an_engine_answers_on_a_gpu_as_its_graph_does_on_a_cpu(tmp_path: Path) -> None:
    """Builds for the GPU at hand with whichever of the two libraries is installed."""
    from tests.deploy.encoder_graph import feeds
    from tests.deploy.real_engine import build_here, engine_backend

    backend = engine_backend()
    graph = quantized(tmp_path, "tensorrt")
    build_here(graph, tmp_path / "engine")
    inputs = feeds(batch=2, length=9, seed=0)
    with open_backend("onnxruntime", graph) as cpu, open_backend(backend, tmp_path / "engine") as gpu:
        expected, found = cpu.infer(inputs), gpu.infer(inputs)
        for name, values in expected.items():
            np.testing.assert_allclose(found[name], values, atol=0.05 * np.abs(values).max())
        gpu.fix_shapes(inputs)
        again = gpu.infer(inputs)
        for name, values in found.items():
            np.testing.assert_array_equal(again[name], values)
