"""Which GPUs an engine is for: named compute capabilities, or the GPU at hand."""

from __future__ import annotations

from collections.abc import Sequence

from deploy.backends.cuda_devices import CudaDevice, cuda_devices
from deploy.backends.tensorrt_dialect import Dialect

USUAL_TARGETS = ("7.5", "8.0", "8.6", "8.9", "12.0")
"""Compute capabilities that TensorRT-RTX builds for where none is named."""


FIRST_WITH_FLOAT8 = "8.9"
"""First compute capability whose tensor cores multiply FP8 (Ada; NVIDIA's data sheets)."""


def has_float8_units(capability: str) -> bool:
    """Whether GPUs of a compute capability multiply FP8."""
    return _numbers(capability) >= _numbers(FIRST_WITH_FLOAT8)


def no_float8(capability: str) -> str:
    """Why there is no FP8 engine for a compute capability."""
    return f"SM {capability} has no FP8: it begins with SM {FIRST_WITH_FLOAT8}; INT8 runs there (profile 'tensorrt')"


def without_float8(targets: Sequence[str], *, may_drop: bool) -> dict[str, str]:
    """Targets that an FP8 graph cannot be built for, with the reason.

    Args:
        targets: compute capabilities.
        may_drop: whether they may be left out while others remain.

    Raises:
        ValueError: one of them was asked for by name, or none remains.
    """
    lacking = {target: no_float8(target) for target in targets if not has_float8_units(target)}
    if lacking and (not may_drop or len(lacking) == len(targets)):
        raise ValueError(next(iter(lacking.values())))
    return lacking


def _numbers(capability: str) -> tuple[int, ...]:
    return tuple(int(part) for part in capability.split("."))


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
