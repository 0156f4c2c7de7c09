"""How an engine is to be built, apart from its graph and its shapes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from deploy.backends.tensorrt_dialect import Dialect

HardwareCompatibility = Literal["none", "ampere+", "same-compute-capability"]
Verbosity = Literal["names", "detailed", "none"]

_HARDWARE_LEVELS: dict[str, str] = {
    "none": "NONE",
    "ampere+": "AMPERE_PLUS",
    "same-compute-capability": "SAME_COMPUTE_CAPABILITY",
}
_VERBOSITIES: dict[str, str] = {"names": "LAYER_NAMES_ONLY", "detailed": "DETAILED", "none": "NONE"}
_HIGHEST_LEVEL = 5
_MEBIBYTE = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineSettings:
    """What the builder may do."""

    optimization_level: int | None = None
    """0 (quick to build) to 5 (slow to build, fast to run); None takes the library's own, 3."""
    workspace_mib: int | None = None
    """Memory that a kernel may use beside its tensors; None allows all that the device has."""
    timing_cache: Path | None = None
    """File of kernel timings: read where it exists, and written back, so that later builds are quick and alike."""
    hardware_compatibility: HardwareCompatibility = "none"
    """``ampere+``: runs on every device from SM 8.0 on, more slowly."""
    version_compatible: bool = False
    """Runs on later versions of the same major version, for plans that are trusted."""
    strip_plan: bool = False
    """Leaves the weights out of the plan, to be put in from the graph."""
    verbosity: Verbosity = "detailed"
    """What the plan tells an inspector; ``detailed`` is needed to see which layers run in INT8."""

    def check(self, dialect: Dialect) -> None:
        """Refuse what this library does not do.

        Raises:
            ValueError: names the setting and says why.
        """
        level, workspace = self.optimization_level, self.workspace_mib
        if level is not None and not 0 <= level <= _HIGHEST_LEVEL:
            raise ValueError(f"optimization level is {level}; expected 0 to {_HIGHEST_LEVEL}")
        if workspace is not None and workspace < 1:
            raise ValueError(f"workspace is {workspace} MiB; expected at least 1")
        if self.timing_cache is not None and not dialect.has_timing_cache:
            raise ValueError(f"{dialect.title} has no timing cache: it chooses kernels where the engine runs")
        if self.hardware_compatibility != "none" and not dialect.has_compatibility:
            raise ValueError(
                f"{dialect.title} has no hardware compatibility level: name the compute capabilities to build for"
            )
        if self.version_compatible and not dialect.has_compatibility:
            raise ValueError(f"{dialect.title} builds no version-compatible engines: build again for another version")

    def apply(self, config: Any, dialect: Dialect) -> None:
        """Set up a builder's configuration; the timing cache is not touched."""
        module = dialect.module
        if self.optimization_level is not None:
            config.builder_optimization_level = self.optimization_level
        if self.workspace_mib is not None:
            config.set_memory_pool_limit(module.MemoryPoolType.WORKSPACE, self.workspace_mib * _MEBIBYTE)
        if self.hardware_compatibility != "none":
            level = _HARDWARE_LEVELS[self.hardware_compatibility]
            config.hardware_compatibility_level = getattr(module.HardwareCompatibilityLevel, level)
        if self.version_compatible:
            config.set_flag(module.BuilderFlag.VERSION_COMPATIBLE)
        if self.strip_plan:
            config.set_flag(module.BuilderFlag.STRIP_PLAN)
        config.profiling_verbosity = getattr(module.ProfilingVerbosity, _VERBOSITIES[self.verbosity])
