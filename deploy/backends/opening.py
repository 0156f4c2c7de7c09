"""Open an artifact on a backend by name. Only the backend that is asked for is imported."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from deploy.backends.artifact_facts import is_engine
from deploy.backends.base import Backend
from deploy.backends.cuda_devices import cuda_devices
from deploy.backends.engine_report import EngineReport


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


def _tensorrt(artifact: Path, threads: int | None, precision: str | None) -> Backend:
    return _engine("tensorrt", artifact, threads, precision)


def _tensorrt_rtx(artifact: Path, threads: int | None, precision: str | None) -> Backend:
    return _engine("tensorrt-rtx", artifact, threads, precision)


def _engine(name: str, artifact: Path, threads: int | None, precision: str | None) -> Backend:
    from deploy.backends.tensorrt_gpu import TensorRtBackend  # noqa: PLC0415 - only for those who have a GPU

    _refuse_precision(precision, name)
    if threads is not None:
        raise ValueError(f"threads has no effect on backend '{name}': it computes on the GPU")
    return TensorRtBackend(artifact, backend=name)


def _refuse_precision(precision: str | None, name: str) -> None:
    if precision is not None:
        raise ValueError(f"precision has no effect on backend '{name}': it computes in the types of the graph")


_OPENERS: dict[str, Callable[[Path, int | None, str | None], Backend]] = {
    "openvino": _openvino,
    "onnxruntime": _onnxruntime,
    "onnxruntime-cuda": _onnxruntime_cuda,
    "tensorrt": _tensorrt,
    "tensorrt-rtx": _tensorrt_rtx,
}
BACKEND_NAMES = tuple(_OPENERS)
ENGINE_BACKENDS = ("tensorrt", "tensorrt-rtx")
"""Those whose artifacts are engines."""
_ON_A_GPU = (*ENGINE_BACKENDS, "onnxruntime-cuda")


def require_devices(names: Iterable[str]) -> None:
    """Refuse backends that this machine has no device for, before anything is read or opened.

    Raises:
        ValueError: names the backend, and says why there is no device.
    """
    for name in names:
        if name in _ON_A_GPU:
            devices, why_none = cuda_devices()
            if not devices:
                raise ValueError(f"backend '{name}' runs on an NVIDIA GPU: {why_none}")


def open_backend(name: str, artifact: Path, *, threads: int | None = None, precision: str | None = None) -> Backend:
    """Open an ONNX file, or the folder of an engine.

    Args:
        name: one of ``BACKEND_NAMES``.
        artifact: ONNX file, float or quantized; for ``tensorrt`` and ``tensorrt-rtx`` the folder of an engine.
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
    if name not in ENGINE_BACKENDS and is_engine(artifact):
        raise ValueError(
            f"{artifact} is an engine, which backend '{name}' does not run; pass --backend {EngineReport.load(artifact).backend}"
        )
    return _OPENERS[name](artifact, threads, precision)
