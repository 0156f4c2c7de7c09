"""Which GPUs an engine is for: named compute capabilities, or the GPU at hand."""

from __future__ import annotations

from collections.abc import Sequence

from deploy.backends.cuda_devices import CudaDevice, cuda_devices
from deploy.backends.tensorrt_dialect import Dialect

USUAL_TARGETS = ("7.5", "8.0", "8.6", "8.9", "12.0")
"""Compute capabilities that TensorRT-RTX builds for where none is named."""


def engine_targets(dialect: Dialect, wanted: Sequence[str] | None) -> tuple[str, ...]:
    """Compute capabilities to build for; empty for a library that builds for the GPU it runs on.

    Args:
        dialect: the library.
        wanted: such as ``8.9``; None takes ``USUAL_TARGETS`` as far as the library knows them.

    Raises:
        ValueError: unknown to the library, none at all, or named for a library that takes none.
    """
    if not dialect.takes_targets:
        if wanted:
            raise ValueError(f"{dialect.title} builds for the GPU it runs on; compute capabilities cannot be named")
        return ()
    if wanted is None:
        return tuple(target for target in USUAL_TARGETS if target in dialect.targets())
    if not wanted:
        raise ValueError("no compute capability to build for")
    for target in wanted:
        dialect.target(target)
    return tuple(wanted)


def building_device(dialect: Dialect) -> CudaDevice:
    """The GPU that an engine is built on and for, asked of its driver before any object of the library is made.

    Raises:
        ValueError: there is none; the message says why.
    """
    devices, why_none = cuda_devices()
    if not devices:
        raise ValueError(
            f"{dialect.title} builds on the GPU that the engine is for: {why_none}; --backend tensorrt-rtx needs none"
        )
    return devices[0]
