"""ONNX Runtime: the reference for float parity and for integer semantics; also on CUDA when that is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np

from deploy.backends.artifact import read_artifact
from deploy.backends.base import Backend, Feeds
from deploy.backends.engine_contents import graph_contents
from deploy.backends.onnxruntime_form import SLOWER_FUSIONS, OnnxRuntimeForm
from deploy.graphs.graph_structure import read_outline
from deploy.machine import machine_facts

try:
    import onnxruntime
except ImportError as error:
    raise ImportError("onnxruntime is not installed: pip install 'quietformer[cpu]'") from error

_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
_TYPES = {
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(bool)": np.bool_,
}


class OnnxRuntimeBackend(Backend):
    """An ONNX graph in ONNX Runtime, in the form and with the graph optimizations that are fastest.

    Args:
        path: ONNX file.
        threads: of one operator; None lets the runtime choose.
        device: ``cuda`` never falls back to the CPU.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not a model that the runtime accepts, or no usable CUDA device.
    """

    def __init__(self, path: Path, *, threads: int | None = None, device: Literal["cpu", "cuda"] = "cpu") -> None:
        self.name = "onnxruntime" if device == "cpu" else "onnxruntime-cuda"
        self._device = device
        self._threads = threads
        form = OnnxRuntimeForm(saturates=machine_facts(versions={}).saturates_in_16_bits)
        artifact = read_artifact(path, rewrite=form.rewrite if device == "cpu" else lambda model: False)
        self.input_shapes, self.info = artifact.input_shapes, artifact.info
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        if form.needs_exact_kernels:
            options.add_session_config_entry("session.x64quantprecision", "1")
        if threads is not None:
            options.intra_op_num_threads = threads
        if artifact.weights:
            folder = str(path.parent.resolve())
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
        provider = _PROVIDERS[device]
        if provider not in onnxruntime.get_available_providers():
            raise ValueError(
                f"this ONNX Runtime has no {provider}; it has {', '.join(onnxruntime.get_available_providers())}: "
                "pip install 'quietformer[gpu]' (instead of [cpu])"
            )
        source = artifact.source if device == "cpu" else str(path)
        try:
            self._session: Any = onnxruntime.InferenceSession(
                source, options, providers=[provider], disabled_optimizers=SLOWER_FUSIONS if device == "cpu" else None
            )
        except Exception as error:  # the runtime's exceptions have no public base
            raise ValueError(f"ONNX Runtime does not accept {path}: {_first_line(error)}") from error
        if self._session.get_providers()[0] != provider:
            raise ValueError(f"ONNX Runtime fell back from {provider} to {self._session.get_providers()[0]}")
        floats = "float32" if device == "cpu" else _float_type(path)  # the CPU's kernels widen float16
        self.precision = f"int8 + {floats}" if artifact.is_quantized else floats
        if artifact.is_float8:
            self.precision = f"float8 grid in {floats}"
        inputs = self._session.get_inputs()
        if odd := [value for value in inputs if value.type not in _TYPES]:
            raise ValueError(f"{path}: input '{odd[0].name}' is {odd[0].type}; expected one of {', '.join(_TYPES)}")
        self.input_types = {value.name: np.dtype(_TYPES[value.type]) for value in inputs}
        self._outputs = [value.name for value in self._session.get_outputs()]

    def _run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        try:
            return dict(zip(self._outputs, self._session.run(self._outputs, feeds), strict=True))
        except Exception as error:  # the runtime's exceptions have no public base
            raise ValueError(f"ONNX Runtime cannot run these feeds: {_first_line(error)}") from error

    def describe(self) -> dict[str, str]:
        """See :meth:`Backend.describe`."""
        return {
            "backend": self.name,
            "version": str(onnxruntime.__version__),
            "device": self._device,
            "precision": self.precision,
            "threads": "automatic" if self._threads is None else str(self._threads),
        }

    def close(self) -> None:
        """Free the session."""
        self._session = None


def _float_type(path: Path) -> str:
    """What most of a graph's products are in that are not in 8 bits; float32 where there are none."""
    kinds = graph_contents(read_outline(path)).precision.split(" + ")
    return kinds[-1] if kinds[-1].startswith(("float16", "float32", "bfloat16")) else "float32"


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
