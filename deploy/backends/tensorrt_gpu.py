"""Run an engine on the GPU: TensorRT 10 and 11, and TensorRT-RTX.

Everything that can be wrong with an engine is refused before a ``Runtime`` is made (:mod:`deploy.backends.engine_checks`).
Unverified: no GPU was at hand; the calls follow the inventory of the three Python interfaces and are tested on stand-ins.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deploy.backends.artifact_facts import info_from_values
from deploy.backends.base import Backend, Feeds
from deploy.backends.cuda_stream import CudaError, CudaStream
from deploy.backends.engine_checks import check_device, check_engine_files, check_version
from deploy.backends.engine_inspection import EngineInspection, read_inspection
from deploy.backends.engine_memory import EngineMemory
from deploy.backends.engine_timing import EngineTimer, Work
from deploy.backends.tensorrt_dialect import TITLES, load_dialect, open_log
from deploy.graphs.shapes import joined_sizes

_TYPES: dict[str, np.dtype[Any]] = {
    "FLOAT": np.dtype(np.float32),
    "HALF": np.dtype(np.float16),
    "INT8": np.dtype(np.int8),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "UINT8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
"""NumPy's type by the library's."""

_Shapes = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Captured:
    """A run with fixed shapes, to be launched with one call."""

    shapes: _Shapes
    graph: ctypes.c_void_p


class TensorRtBackend(Backend):
    """An engine in the folder that ``quietformer build`` wrote.

    After ``fix_shapes`` a run with those shapes is one launch of a CUDA graph, copies included, until other shapes come.

    Raises:
        FileNotFoundError: no such folder, or it holds no engine.
        NotADirectoryError: a file was named.
        ImportError: the library is missing.
        ValueError: an engine that cannot run here; says why. No object of the library exists then.
    """

    def __init__(self, folder: Path, *, backend: str = "tensorrt") -> None:
        self.name = backend
        report = check_engine_files(folder, backend=backend)
        dialect = load_dialect(backend)
        check_version(report, dialect)
        device = check_device(report)
        self.precision = report.precision
        self.info = info_from_values(report.graph_info, name=str(folder)) if report.graph_info is not None else None
        self.input_shapes = {name: tuple(sizes) for name, sizes in report.inputs.items()}
        self.largest_batch = min((bounds["max"][0] for bounds in report.profile.values()), default=None)
        self._report, self._device, self._module = report, device, dialect.module
        self._stream = CudaStream()
        logger, self._messages = open_log(dialect)
        self._runtime = dialect.module.Runtime(logger)
        self._engine = self._runtime.deserialize_cuda_engine((folder / report.engine).read_bytes())
        if self._engine is None:
            self._stream.close()
            raise ValueError(f"{TITLES[backend]} does not load {folder / report.engine}: {self._messages.last_error()}")
        self._context = self._engine.create_execution_context()
        names = [self._engine.get_tensor_name(place) for place in range(self._engine.num_io_tensors)]
        kinds = {name: _TYPES[_last_word(self._engine.get_tensor_dtype(name))] for name in names}
        inputs = [name for name in names if _last_word(self._engine.get_tensor_mode(name)) == "INPUT"]
        self.input_types = {name: kinds[name] for name in report.inputs if name in inputs}
        self._memory = EngineMemory(
            self._stream, self._context, {name: kinds[name] for name in names if name not in inputs}
        )
        self._captured: _Captured | None = None

    def _run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        self._check_range(feeds)
        self._stream.use_here()
        shapes = _shapes_of(feeds)
        if self._captured is not None and self._captured.shapes == shapes:
            self._memory.fill(feeds)
            self._stream.launch(self._captured.graph)
        else:
            # The written-down run belongs to the shapes that the engine was last told.
            self._drop_graph()
            self._memory.set_shapes(feeds)
            self._memory.fill(feeds)
            self._enqueue(feeds)
        self._stream.wait()
        return self._memory.outputs()

    def fix_shapes(self, feeds: Feeds) -> None:
        """Run once, then write the same run down as a CUDA graph."""
        checked = self._checked(feeds)
        self._drop_graph()
        self._run(checked)  # what is set up on a first run must not be written down
        self._captured = _Captured(shapes=_shapes_of(checked), graph=self._capture(lambda: self._enqueue(checked)))

    def timer(self, feeds: Feeds, *, cuda_graph: bool, clock: Callable[[], float] = time.perf_counter) -> EngineTimer:
        """What times queries with these feeds, warmed up once; see :mod:`deploy.backends.engine_timing`.

        Args:
            feeds: as for ``infer``, and refused as there.
            cuda_graph: whether the engine is launched as a CUDA graph.
            clock: seconds of the host.
        """
        checked = self._checked(feeds)
        self._drop_graph()
        self._run(checked)
        graph = self._capture(self._execute) if cuda_graph else None
        return EngineTimer(
            self._stream,
            Work(
                fill=lambda: self._memory.fill(checked),
                copy_in=lambda: self._memory.copy_in(checked),
                execute=self._execute if graph is None else lambda: self._stream.launch(graph),
                copy_out=self._memory.copy_out,
                release=lambda: None if graph is None else self._stream.drop(graph),
            ),
            clock=clock,
        )

    def describe(self) -> dict[str, str]:
        """Library and its version, GPU and its driver, precision, hash of the engine."""
        return {
            "backend": self.name,
            "version": self._report.version,
            **self.device_facts(),
            "precision": self.precision,
            "engine": self._report.engine_sha256[:12],
        }

    @property
    def capability(self) -> str:
        """Compute capability of the GPU, such as ``8.9``."""
        return self._device.compute_capability

    def device_facts(self) -> dict[str, str]:
        """GPU and driver, for a report."""
        return self._device.facts()

    def inspect(self) -> EngineInspection:
        """Layers of the engine, and in which type its matrix products run.

        Raises:
            ValueError: it was built without verbosity ``detailed``.
        """
        inspector = self._engine.create_engine_inspector()
        return read_inspection(inspector.get_engine_information(self._module.LayerInformationFormat.JSON))

    def close(self) -> None:
        """Free the engine, then the memory it used."""
        self._captured = None
        self._context = self._engine = self._runtime = None
        self._stream.close()

    def _check_range(self, feeds: Feeds) -> None:
        for name, bounds in self._report.profile.items():
            shape = feeds[name].shape
            if not all(
                low <= size <= high for low, size, high in zip(bounds["min"], shape, bounds["max"], strict=True)
            ):
                raise ValueError(
                    f"input '{name}' has shape {joined_sizes(shape)}; the engine was built for {joined_sizes(bounds['min'])} to "
                    f"{joined_sizes(bounds['max'])}"
                )

    def _enqueue(self, feeds: Feeds) -> None:
        """Copies, the engine and copies back, on the stream."""
        self._memory.copy_in(feeds)
        self._execute()
        self._memory.copy_out()

    def _execute(self) -> None:
        if not self._context.execute_async_v3(self._stream.handle):
            raise CudaError(f"{TITLES[self.name]} did not run the engine: {self._messages.last_error()}")

    def _capture(self, work: Callable[[], None]) -> ctypes.c_void_p:
        """Write work down as a CUDA graph instead of doing it."""
        self._stream.begin_capture()
        try:
            work()
        except BaseException:
            self._stream.end_capture(keep=False)
            raise
        graph = self._stream.end_capture()
        assert graph is not None
        return graph

    def _drop_graph(self) -> None:
        if self._captured is not None:
            self._stream.drop(self._captured.graph)
            self._captured = None


def _shapes_of(feeds: Feeds) -> _Shapes:
    return tuple(sorted((name, array.shape) for name, array in feeds.items()))


def _last_word(member: Any) -> str:
    """``INPUT`` of ``TensorIOMode.INPUT``."""
    return str(member).rpartition(".")[2]
