"""Open an artifact on a backend by name. Only the backend that is asked for is imported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from deploy.backends.base import Backend


def _openvino(artifact: Path, threads: int | None, precision: str | None) -> Backend:
    from deploy.backends.openvino_cpu import OpenVinoBackend  # noqa: PLC0415 - optional dependency

    return OpenVinoBackend(artifact, threads=threads, precision=precision)  # type: ignore[arg-type]  # checked there


def _onnxruntime(artifact: Path, threads: int | None, precision: str | None) -> Backend:
    from deploy.backends.onnxruntime_cpu import OnnxRuntimeBackend  # noqa: PLC0415 - optional dependency

    _refuse_precision(precision, "onnxruntime")
    return OnnxRuntimeBackend(artifact, threads=threads)


def _onnxruntime_cuda(artifact: Path, threads: int | None, precision: str | None) -> Backend:
    from deploy.backends.onnxruntime_cpu import OnnxRuntimeBackend  # noqa: PLC0415 - optional dependency

    _refuse_precision(precision, "onnxruntime-cuda")
    return OnnxRuntimeBackend(artifact, threads=threads, device="cuda")


def _refuse_precision(precision: str | None, name: str) -> None:
    if precision is not None:
        raise ValueError(f"precision has no effect on backend '{name}': it computes in the types of the graph")


_OPENERS: dict[str, Callable[[Path, int | None, str | None], Backend]] = {
    "openvino": _openvino,
    "onnxruntime": _onnxruntime,
    "onnxruntime-cuda": _onnxruntime_cuda,
}
BACKEND_NAMES = tuple(_OPENERS)


def open_backend(name: str, artifact: Path, *, threads: int | None = None, precision: str | None = None) -> Backend:
    """Open an ONNX file.

    Args:
        name: one of ``BACKEND_NAMES``.
        artifact: ONNX file, float or quantized.
        threads: None lets the runtime choose.
        precision: see :class:`deploy.backends.openvino_cpu.OpenVinoBackend`.

    Raises:
        ValueError: unknown backend, a setting it does not have, or not a model it accepts.
        FileNotFoundError: no such file.
        ImportError: the runtime is not installed; the message names the extra.
    """
    if name not in _OPENERS:
        raise ValueError(f"unknown backend '{name}'; known backends are {', '.join(BACKEND_NAMES)}")
    if threads is not None and threads < 1:
        raise ValueError(f"threads is {threads}; expected at least 1")
    return _OPENERS[name](artifact, threads, precision)
