"""Open one graph on one runtime: as this project opens it, or as the runtime comes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from deploy.backends.opening import open_backend
from deploy.tasks.task import Feeds


class Runner(Protocol):
    """An opened graph."""

    precision: str

    @property
    def is_simulated(self) -> bool:
        """Whether it computes its graph's integers in float."""

    def infer(self, feeds: Feeds, /) -> dict[str, np.ndarray]:
        """Outputs by name."""

    def fix_shapes(self, feeds: Feeds) -> None:
        """Prepare for exactly these shapes."""

    def close(self) -> None:
        """Free what it holds."""


class PlainOnnxRuntime:
    """``InferenceSession(path)`` and no more: without the exact 8-bit kernels of processors that have no 8-bit dot product."""

    precision = "as it comes"
    is_simulated = False

    def __init__(self, graph: Path, threads: int | None) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or 0
        options.log_severity_level = 3
        self._session: Any = onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
        self._names = [value.name for value in self._session.get_outputs()]

    def infer(self, feeds: Feeds, /) -> dict[str, np.ndarray]:
        """Outputs by name.

        Raises:
            ValueError: a node of the graph fails; the message is the runtime's first line.
        """
        try:
            outputs = self._session.run(None, feeds)
        except Exception as error:  # the runtime's exceptions have no public base
            raise ValueError(_first_line(error)) from error
        return dict(zip(self._names, outputs, strict=True))

    def fix_shapes(self, feeds: Feeds) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Free the session."""
        self._session = None


class PlainOpenVino:
    """``compile_model(path, "CPU")`` for latency: 8-bit kernels wherever the runtime finds them faster, whatever their sums do."""

    precision = "as it comes"
    is_simulated = False

    def __init__(self, graph: Path, threads: int | None) -> None:
        import openvino

        self._config: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY"}
        if threads is not None:
            self._config["INFERENCE_NUM_THREADS"] = threads
        self._core = openvino.Core()
        self._graph = str(graph)
        self._open({})

    def _open(self, shapes: dict[str, list[int]]) -> None:
        model = self._core.read_model(self._graph)
        if shapes:
            model.reshape(shapes)
        compiled = self._core.compile_model(model, "CPU", self._config)
        self._names = [port.any_name for port in compiled.outputs]
        self._request: Any = compiled.create_infer_request()

    def infer(self, feeds: Feeds, /) -> dict[str, np.ndarray]:
        """Outputs by name."""
        self._request.infer(feeds, share_inputs=True)
        return {name: np.array(self._request.get_output_tensor(place).data) for place, name in enumerate(self._names)}

    def fix_shapes(self, feeds: Feeds) -> None:
        """Compile once more with static shapes."""
        self._open({name: list(array.shape) for name, array in feeds.items()})

    def close(self) -> None:
        """Free the compiled model."""
        self._request = None


_OPENERS: dict[str, Callable[[Path, int | None], Runner]] = {
    "onnxruntime": lambda graph, threads: open_backend("onnxruntime", graph, threads=threads),
    "onnxruntime as it comes": PlainOnnxRuntime,
    "openvino": lambda graph, threads: open_backend("openvino", graph, threads=threads),
    "openvino as it comes": PlainOpenVino,
}
RUNNERS = tuple(_OPENERS)
OWN = ("onnxruntime", "openvino")
"""The two that a float graph is measured on: for it, the others are the same."""


def open_runner(name: str, graph: Path, *, threads: int | None = None) -> Runner:
    """Open a graph; without ``threads`` the runtime chooses.

    Raises:
        ValueError: the runtime does not take it; the message is its own first line.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _OPENERS[name](graph, threads)
    except Exception as error:  # the runtimes' exceptions have no public base
        raise ValueError(_first_line(error)) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:160]
