"""What was measured to set the switches of sites that were left to timing, as a quantized graph and its engine keep it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from deploy.graphs.profiles import Switch


@dataclass(frozen=True, kw_only=True, slots=True)
class SwitchTiming:
    """One combination of switches, measured in turns with the others."""

    switches: dict[str, Switch]
    median_ms: float | None
    """None where there was nothing to time."""
    precision: str
    """Of the matrix products, as the backend names it."""
    speed_up: tuple[float, float, float] | None
    """Over all switches off, with its 95 % interval: ratio, low, high. None for all off itself."""

    @property
    def is_faster(self) -> bool:
        """Whether the whole interval lies above 1."""
        return self.speed_up is not None and self.speed_up[1] > 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class SwitchDecision:
    """The switches that timing chose, where, and by what."""

    switches: dict[str, Switch]
    backend: str
    device: str
    """Processor or GPU."""
    measured: str
    """Shape, and of engines how queries were sent."""
    is_simulated: bool
    """Whether the integers were computed in float there, so that the times say nothing of other devices."""
    timings: tuple[SwitchTiming, ...]
    """All off first; combinations that make the same graph as an earlier one are left out."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Rebuild from :meth:`to_dict`.

        Raises:
            KeyError, TypeError: not such values.
        """
        timings = tuple(
            SwitchTiming(**(entry | {"speed_up": tuple(entry["speed_up"]) if entry["speed_up"] else None}))
            for entry in values["timings"]
        )
        return cls(**(dict(values) | {"timings": timings}))

    def summary(self) -> str:
        """The decision in a line."""
        where = f"{self.backend} ({self.device}), {self.measured}"
        if len(self.timings) < 2:
            return f"{switches_text(self.switches)}: the graph has nothing that they would change"
        told = ", ".join(
            f"{switches_text(timing.switches)} {timing.median_ms:.3g} ms"
            + (f" ({timing.speed_up[0]:.2f} times as fast)" if timing.speed_up else "")
            for timing in self.timings
        )
        return f"{switches_text(self.switches)}: timed on {where}: {told}"


def switches_text(switches: Mapping[str, Switch]) -> str:
    """For people: ``bmms=off residual_adds=on``."""
    return " ".join(f"{name}={value}" for name, value in switches.items())


def fastest(timings: tuple[SwitchTiming, ...]) -> dict[str, Switch]:
    """The switches of the fastest combination that is faster beyond doubt; all off where none is, since fewer integers lose less."""
    faster = [timing for timing in timings if timing.is_faster]
    chosen = max(faster, key=lambda timing: timing.speed_up[0] if timing.speed_up else 1.0, default=timings[0])
    return chosen.switches
