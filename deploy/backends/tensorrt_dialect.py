"""One interface over ``tensorrt`` 10 and 11 and ``tensorrt-rtx``: what each can do is found by looking, never by its version.

Only what all of them have is used as it is; :class:`Dialect` says what a builder may ask of the one at hand.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MODULES = {"tensorrt": "tensorrt", "tensorrt-rtx": "tensorrt_rtx"}
"""Import name by backend."""
TITLES = {"tensorrt": "TensorRT", "tensorrt-rtx": "TensorRT-RTX"}
_NEEDED = {
    "strongly typed networks": ("NetworkDefinitionCreationFlag", "STRONGLY_TYPED"),
    "a progress monitor": ("IProgressMonitor", "step_complete"),
    "stripped plans": ("BuilderFlag", "STRIP_PLAN"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialect:
    """An imported library, and what it can do."""

    module: Any
    backend: str
    """As in ``--backend``."""
    title: str
    version: str
    takes_targets: bool
    """Builds for named compute capabilities, without a device; else for the device it runs on."""

    @property
    def has_timing_cache(self) -> bool:
        """Whether timings of kernels can be kept. TensorRT-RTX chooses kernels on the user's machine and keeps none."""
        return not self.takes_targets and hasattr(self.module, "ITimingCache")

    @property
    def has_compatibility(self) -> bool:
        """Whether a plan can be made for other devices or versions than the ones it is built with."""
        return not self.takes_targets

    def targets(self) -> tuple[str, ...]:
        """Compute capabilities that can be named, ``7.5`` first."""
        names = self.module.ComputeCapability.__members__ if self.takes_targets else ()
        return tuple(f"{name[2:-1]}.{name[-1]}" for name in names if name.startswith("SM"))

    def target(self, capability: str) -> Any:
        """The library's name of a compute capability such as ``8.9``.

        Raises:
            ValueError: it does not build for that one; the message lists those it builds for.
        """
        if capability not in self.targets():
            raise ValueError(
                f"{self.title} does not build for compute capability {capability}; it builds for "
                f"{', '.join(self.targets())}"
            )
        return self.module.ComputeCapability.__members__[f"SM{capability.replace('.', '')}"]

    def network_flags(self) -> int:
        """Flags of a strongly typed network; the bit's place differs between versions."""
        return 1 << int(self.module.NetworkDefinitionCreationFlag.STRONGLY_TYPED)


def load_dialect(backend: str) -> Dialect:
    """Import a library.

    Args:
        backend: ``tensorrt`` or ``tensorrt-rtx``.

    Raises:
        ImportError: it is not installed (names the extra), or its libraries are missing (names the library).
        ValueError: an unknown backend, or a version that lacks what engines here need.
    """
    if backend not in MODULES:
        raise ValueError(f"unknown engine backend '{backend}'; known are {', '.join(MODULES)}")
    try:
        module = importlib.import_module(MODULES[backend])
    except ModuleNotFoundError as error:
        raise ImportError(f"{backend} is not installed: pip install 'quietformer[{backend}]'") from error
    except ImportError as error:
        raise ImportError(f"{backend} is installed, but does not load: {error}") from error
    version = str(module.__version__)
    for what, (kind, attribute) in _NEEDED.items():
        if not hasattr(getattr(module, kind, None), attribute):
            raise ValueError(f"{TITLES[backend]} {version} has no {what}; 10.12 or newer is needed")
    return Dialect(
        module=module,
        backend=backend,
        title=TITLES[backend],
        version=version,
        takes_targets=hasattr(module, "ComputeCapability"),
    )


class Messages:
    """What the library said since :meth:`clear`."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.errors: list[str] = []

    def clear(self) -> None:
        """Forget everything."""
        self.warnings.clear()
        self.errors.clear()

    def last_error(self) -> str:
        """First line of the last error."""
        return self.errors[-1].strip().splitlines()[0] if self.errors else "no reason given"


_logs: dict[str, tuple[Any, Any, Messages]] = {}


def open_log(dialect: Dialect) -> tuple[Any, Messages]:
    """The logger of a library, and what it has collected, emptied.

    A process has one per library: the first logger that a library is given gets the messages of all later builders.
    """
    module, logger, messages = _logs.get(dialect.backend, (None, None, None))
    if messages is None or module is not dialect.module:
        messages = Messages()
        logger = _make_logger(dialect.module, messages)
        _logs[dialect.backend] = (dialect.module, logger, messages)
    messages.clear()
    return logger, messages


def _make_logger(module: Any, messages: Messages) -> Any:
    class Logger(module.ILogger):  # type: ignore[misc]  # untyped base
        def __init__(self) -> None:
            module.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            if severity == module.ILogger.WARNING:
                messages.warnings.append(message)
            elif severity in (module.ILogger.ERROR, module.ILogger.INTERNAL_ERROR):
                messages.errors.append(message)

    return Logger()


def make_monitor(dialect: Dialect, advance: Callable[[str, int, int], None], *, goes_on: Callable[[], bool]) -> Any:
    """A progress monitor.

    Args:
        dialect: whose builder it is for.
        advance: told a phase's name, steps done and steps in all.
        goes_on: asked after each step; a build whose answer is False ends early, without a plan.
    """
    module = dialect.module

    class Monitor(module.IProgressMonitor):  # type: ignore[misc, name-defined]  # untyped base
        def __init__(self) -> None:
            module.IProgressMonitor.__init__(self)
            self.steps: dict[str, int] = {}

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self.steps[phase_name] = num_steps
            advance(phase_name, 0, num_steps)

        def phase_finish(self, phase_name: str) -> None:
            self.steps.pop(phase_name, None)

        def step_complete(self, phase_name: str, step: int) -> bool:
            advance(phase_name, step + 1, self.steps.get(phase_name, step + 1))
            return goes_on()

    return Monitor()
