"""Stand-ins of the CUDA driver, whose device memory is the host's, and of TensorRT's runtime on it.

The engine of the stand-in answers ``output = 2 * input_ids`` as float32. While a stream captures, work is only written down.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.deploy.tensorrt_doubles import Guarded

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


def _number(value: Any) -> int:
    return int(getattr(value, "value", value) or 0)


class HostDriver:
    """The functions of ``libcuda`` that the runner calls."""

    def __init__(self, *, failing: str | None = None) -> None:
        self.failing = failing
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

    def _reserve(self, place: Any, size: Any) -> None:
        block = (ctypes.c_uint8 * _number(size))()
        self.memory[ctypes.addressof(block)] = block
        place._obj.value = ctypes.addressof(block)

    def _cuDevicePrimaryCtxRetain(self, context: Any, _device: Any) -> None:  # noqa: N802 - the driver's name
        context._obj.value = 1

    def _cuStreamCreate(self, stream: Any, _flags: Any) -> None:  # noqa: N802
        stream._obj.value = 77

    def _cuMemAlloc_v2(self, place: Any, size: Any) -> None:  # noqa: N802
        self._reserve(place, size)

    def _cuMemHostAlloc(self, place: Any, size: Any, _flags: Any) -> None:  # noqa: N802
        self._reserve(place, size)

    def _cuMemFree_v2(self, place: Any) -> None:  # noqa: N802
        del self.memory[_number(place)]

    def _cuMemFreeHost(self, place: Any) -> None:  # noqa: N802
        del self.memory[_number(place)]

    def _copy(self, target: Any, source: Any, size: Any, stream: Any) -> None:
        assert _number(stream) == 77
        self.put(lambda: ctypes.memmove(_number(target), _number(source), _number(size)))

    _cuMemcpyHtoDAsync_v2 = _copy  # noqa: N815
    _cuMemcpyDtoHAsync_v2 = _copy  # noqa: N815

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


def add_runtime(module: Any, driver: HostDriver, *, loads: bool = True) -> list[str]:
    """Give a stand-in of ``tensorrt`` a runtime; returns the list of what it was called for."""
    made: list[str] = []
    shapes: dict[str, tuple[int, ...]] = {}
    addresses: dict[str, int] = {}

    def set_shape(name: str, shape: tuple[int, ...]) -> bool:
        shapes[name] = tuple(shape)
        return True

    def execute(stream: int) -> bool:
        assert stream == 77
        shape, source, target = shapes["input_ids"], addresses["input_ids"], addresses["output"]
        size = int(np.prod(shape))

        def work() -> None:
            ids = np.ctypeslib.as_array((ctypes.c_int64 * size).from_address(source))
            out = np.ctypeslib.as_array((ctypes.c_float * size).from_address(target))
            out[:] = 2 * ids

        driver.put(work)
        return True

    context = Guarded(
        CONTEXT,
        [],
        set_input_shape=set_shape,
        get_tensor_shape=lambda name: shapes["input_ids" if name == "output" else name],
        set_tensor_address=addresses.__setitem__,
        execute_async_v3=execute,
    )
    names = ["input_ids", "output"]
    told = '{"Layers": [{"Name": "a", "LayerType": "gemm", "TacticName": "sm80_gemm_i8i8_tn"}], "I/O Tensors": []}'
    inspector = Guarded(INSPECTOR, [], get_engine_information=lambda form: told if form == "json" else "a")
    engine = Guarded(
        ENGINE,
        [],
        num_io_tensors=2,
        get_tensor_name=names.__getitem__,
        get_tensor_mode=lambda name: "TensorIOMode.OUTPUT" if name == "output" else "TensorIOMode.INPUT",
        get_tensor_dtype=lambda name: "DataType.FLOAT" if name == "output" else "DataType.INT64",
        create_execution_context=lambda: context,
        create_engine_inspector=lambda: inspector,
    )

    def runtime(_logger: Any) -> Guarded:
        made.append("Runtime")
        return Guarded(RUNTIME, [], deserialize_cuda_engine=lambda plan: engine if loads else None)

    allowed, journal, values = module._state
    added = {
        "Runtime": runtime,
        "LayerInformationFormat": Guarded(["ONELINE", "JSON"], [], ONELINE="line", JSON="json"),
    }
    object.__setattr__(module, "_state", (allowed | set(added), journal, values | added))
    return made
