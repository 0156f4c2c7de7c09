"""Stand-ins of the CUDA driver, whose device memory is the host's, and of TensorRT's runtime on it.

A plan that the stand-in of the builder made runs its graph on the CPU; any other answers ``output = 2 * input_ids``. While a
stream captures, work is only written down. The device's clock moves by ``costs``, in ms, and not otherwise.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx
import pytest

from deploy.backends import cuda_devices, cuda_stream
from deploy.backends.opening import open_backend
from deploy.graphs.graph_structure import read_structure
from deploy.graphs.op_precision import OpPrecision, op_precisions
from tests.deploy.tensorrt_doubles import PLAN_OF_GRAPH, Guarded

RUNTIME = [
    "deserialize_cuda_engine",
    "engine_host_code_allowed",
    "error_recorder",
    "gpu_allocator",
    "logger",
    "max_threads",
]
ENGINE = [
    "create_engine_inspector",
    "create_execution_context",
    "device_memory_size_v2",
    "get_tensor_dtype",
    "get_tensor_format",
    "get_tensor_location",
    "get_tensor_mode",
    "get_tensor_name",
    "get_tensor_profile_shape",
    "get_tensor_shape",
    "num_io_tensors",
    "num_layers",
    "num_optimization_profiles",
    "serialize",
    "streamable_weights_size",
]
INSPECTOR = ["error_recorder", "execution_context", "get_engine_information", "get_layer_information"]
CONTEXT = [
    "active_optimization_profile",
    "execute_async_v3",
    "get_max_output_size",
    "get_tensor_address",
    "get_tensor_shape",
    "infer_shapes",
    "set_input_shape",
    "set_optimization_profile_async",
    "set_tensor_address",
]


STREAM = 77
"""Handle of the one stream."""


def _number(value: Any) -> int:
    return int(getattr(value, "value", value) or 0)


class HostDriver:
    """The functions of ``libcuda`` that are called here, and one GPU."""

    def __init__(self, *, failing: str | None = None, name: str = "NVIDIA L4", capability: str = "8.9") -> None:
        self.failing = failing
        self.name, self.capability = name, capability
        self.now = 0.0
        self.costs = {"in": 0.25, "compute": 2.0, "out": 0.125}
        self.compute_cost: Callable[[Answers], float] = lambda answers: self.costs["compute"]
        self.events: dict[int, float] = {}
        self.memory: dict[int, Any] = {}
        self.capture: list[Callable[[], object]] | None = None
        self.graphs: dict[int, list[Callable[[], object]]] = {}
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., int]:
        if not name.startswith("cu"):
            raise AttributeError(name)
        work = getattr(type(self), f"_{name}", None)

        def call(*arguments: Any) -> int:
            self.calls.append(name)
            if name == self.failing:
                return 2
            if work is not None:
                work(self, *arguments)
            return 0

        return call

    def put(self, work: Callable[[], object]) -> None:
        """Run now, or write down while the stream captures."""
        if self.capture is None:
            work()
        else:
            self.capture.append(work)

    def _cuDeviceGetCount(self, count: Any) -> None:  # noqa: N802 - the driver's name
        count._obj.value = 1

    def _cuDeviceGetName(self, name: Any, _size: int, _device: Any) -> None:  # noqa: N802
        name.value = self.name.encode()

    def _cuDeviceGetAttribute(self, value: Any, which: int, _device: Any) -> None:  # noqa: N802
        major, _, minor = self.capability.partition(".")
        value._obj.value = int(major if which == 75 else minor)

    def _cuDriverGetVersion(self, version: Any) -> None:  # noqa: N802
        version._obj.value = 13000

    def _cuEventCreate(self, event: Any, _flags: Any) -> None:  # noqa: N802
        event._obj.value = len(self.events) + 1
        self.events[len(self.events) + 1] = -1.0

    def _cuEventRecord(self, event: Any, stream: Any) -> None:  # noqa: N802
        assert _number(stream) == STREAM
        self.put(lambda: self.events.__setitem__(_number(event), self.now))

    def _cuEventElapsedTime(self, span: Any, start: Any, end: Any) -> None:  # noqa: N802
        span._obj.value = self.events[_number(end)] - self.events[_number(start)]

    def _reserve(self, place: Any, size: Any) -> None:
        block = (ctypes.c_uint8 * _number(size))()
        self.memory[ctypes.addressof(block)] = block
        place._obj.value = ctypes.addressof(block)

    def _cuDevicePrimaryCtxRetain(self, context: Any, _device: Any) -> None:  # noqa: N802 - the driver's name
        context._obj.value = 1

    def _cuStreamCreate(self, stream: Any, _flags: Any) -> None:  # noqa: N802
        stream._obj.value = STREAM

    def _cuMemAlloc_v2(self, place: Any, size: Any) -> None:  # noqa: N802
        self._reserve(place, size)

    def _cuMemHostAlloc(self, place: Any, size: Any, _flags: Any) -> None:  # noqa: N802
        self._reserve(place, size)

    def _cuMemFree_v2(self, place: Any) -> None:  # noqa: N802
        del self.memory[_number(place)]

    def _cuMemFreeHost(self, place: Any) -> None:  # noqa: N802
        del self.memory[_number(place)]

    def _copy(self, target: Any, source: Any, size: Any, stream: Any, *, cost: str) -> None:
        assert _number(stream) == STREAM

        def work() -> None:
            ctypes.memmove(_number(target), _number(source), _number(size))
            self.now += self.costs[cost]

        self.put(work)

    def _cuMemcpyHtoDAsync_v2(self, *arguments: Any) -> None:  # noqa: N802
        self._copy(*arguments, cost="in")

    def _cuMemcpyDtoHAsync_v2(self, *arguments: Any) -> None:  # noqa: N802
        self._copy(*arguments, cost="out")

    def _cuStreamBeginCapture_v2(self, _stream: Any, _mode: Any) -> None:  # noqa: N802
        self.capture = []

    def _cuStreamEndCapture(self, _stream: Any, graph: Any) -> None:  # noqa: N802
        assert self.capture is not None
        graph._obj.value = len(self.graphs) + 1
        self.graphs[len(self.graphs) + 1] = self.capture
        self.capture = None

    def _cuGraphInstantiateWithFlags(self, ready: Any, graph: Any, _flags: Any) -> None:  # noqa: N802
        ready._obj.value = _number(graph)

    def _cuGraphLaunch(self, graph: Any, _stream: Any) -> None:  # noqa: N802
        for work in self.graphs[_number(graph)]:
            work()


class Answers(Protocol):
    """What an engine of the stand-in computes."""

    inputs: dict[str, np.dtype[Any]]
    outputs: dict[str, np.dtype[Any]]
    layers: list[dict[str, Any]]
    """As the inspector tells them."""

    def __call__(self, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Outputs by name."""


class Doubling:
    """``output = 2 * input_ids`` as float32."""

    inputs = {"input_ids": np.dtype(np.int64)}  # noqa: RUF012 - a constant
    outputs = {"output": np.dtype(np.float32)}  # noqa: RUF012
    layers = [{"Name": "a", "LayerType": "gemm", "TacticName": "sm80_gemm_i8i8_tn"}]  # noqa: RUF012

    def __call__(self, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"output": (2 * feeds["input_ids"]).astype(np.float32)}


class GraphAnswers:
    """A graph, run by ONNX Runtime on the CPU; products are told as the graph has them."""

    def __init__(self, path: Path) -> None:
        structure = read_structure(path)
        self.inputs = {value.name: _numpy_type(value) for value in structure.graph.input}
        self.outputs = {value.name: _numpy_type(value) for value in structure.graph.output}
        self.layers = [
            {
                "Name": product.node,
                "LayerType": "gemm",
                "TacticName": "",
                "Inputs": [{"Name": "x", "Format/Datatype": kind, "Datatype": kind} for kind in _operands(product)],
            }
            for product in op_precisions(structure)
        ]
        self._backend = open_backend("onnxruntime", path, threads=1)

    def __call__(self, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return self._backend.infer(feeds)


def _numpy_type(value: onnx.ValueInfoProto) -> np.dtype[Any]:
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))


def _operands(product: OpPrecision) -> list[str]:
    kinds = product.precision.split(" x ")
    named = {"int8": "Int8", "uint8": "UInt8", "float8": "FP8", "float": "Half"}
    return [named[kind] for kind in (kinds if len(kinds) > 1 else ["float", "float"])]


_NAMES = {"int64": "INT64", "int32": "INT32", "float32": "FLOAT", "float16": "HALF"}


def add_runtime(module: Any, driver: HostDriver, *, loads: bool = True) -> list[str]:
    """Give a stand-in of ``tensorrt`` a runtime; returns the list of what it was called for."""
    made: list[str] = []

    def load(plan: bytes) -> Guarded | None:
        if not loads:
            return None
        is_graph = plan.startswith(PLAN_OF_GRAPH)
        answers = GraphAnswers(Path(plan.removeprefix(PLAN_OF_GRAPH).decode())) if is_graph else Doubling()
        return _engine(answers, driver, form=module.__version__.partition(".")[0])

    def runtime(_logger: Any) -> Guarded:
        made.append("Runtime")
        return Guarded(RUNTIME, [], deserialize_cuda_engine=load)

    allowed, journal, values = module._state
    added = {
        "Runtime": runtime,
        "LayerInformationFormat": Guarded(["ONELINE", "JSON"], [], ONELINE="line", JSON="json"),
    }
    object.__setattr__(module, "_state", (allowed | set(added), journal, values | added))
    return made


def _engine(answers: Answers, driver: HostDriver, *, form: str) -> Guarded:
    shapes: dict[str, tuple[int, ...]] = {}
    addresses: dict[str, int] = {}

    def set_shape(name: str, shape: tuple[int, ...]) -> bool:
        shapes[name] = tuple(shape)
        return True

    def shape_of(name: str) -> tuple[int, ...]:
        if name in answers.inputs:
            return shapes[name]
        ones = {key: np.ones(shapes[key], kind) for key, kind in answers.inputs.items()}
        return answers(ones)[name].shape

    def at(name: str, shape: tuple[int, ...], kind: np.dtype[Any]) -> np.ndarray:
        size = int(np.prod(shape)) * kind.itemsize
        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(addresses[name])).view(kind).reshape(shape)

    def execute(stream: int) -> bool:
        assert stream == STREAM
        held = dict(shapes)

        def work() -> None:
            found = answers({name: at(name, held[name], kind).copy() for name, kind in answers.inputs.items()})
            for name, kind in answers.outputs.items():
                at(name, found[name].shape, kind)[...] = found[name]
            driver.now += driver.compute_cost(answers)

        driver.put(work)
        return True

    context = Guarded(
        CONTEXT,
        [],
        set_input_shape=set_shape,
        get_tensor_shape=shape_of,
        set_tensor_address=addresses.__setitem__,
        execute_async_v3=execute,
    )
    kinds = {**answers.inputs, **answers.outputs}
    names = list(kinds)
    told = json.dumps({"Layers": answers.layers, "I/O Tensors" if form == "11" else "Bindings": names})
    inspector = Guarded(INSPECTOR, [], get_engine_information=lambda form: told if form == "json" else "a")
    return Guarded(
        ENGINE,
        [],
        num_io_tensors=len(names),
        get_tensor_name=names.__getitem__,
        get_tensor_mode=lambda name: f"TensorIOMode.{'INPUT' if name in answers.inputs else 'OUTPUT'}",
        get_tensor_dtype=lambda name: f"DataType.{_NAMES[str(kinds[name])]}",
        create_execution_context=lambda: context,
        create_engine_inspector=lambda: inspector,
    )


def use_gpu(monkeypatch: pytest.MonkeyPatch, driver: HostDriver, module: Any = None) -> None:
    """Put the stand-in of a driver, and of ``tensorrt`` where one is given, in place of what this machine has."""
    for owner in (cuda_devices, cuda_stream):
        monkeypatch.setattr(owner, "load_driver", lambda: driver)
    if module is not None:
        # What says that a package is installed; stand-ins take no other attribute.
        object.__setattr__(module, "__spec__", ModuleSpec("tensorrt", loader=None))
        monkeypatch.setitem(sys.modules, "tensorrt", module)
