"""Candidates that take turns in short rounds (A B A B …), so that whatever the machine does to one it does to all."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, Self, TypeVar

Outcome = TypeVar("Outcome")


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """How long is measured; times in seconds."""

    repeats: int = 3
    """Independent repeats; their medians show whether the machine held still."""
    seconds: float = 3.0
    """Recorded time per candidate and repeat."""
    warmup_seconds: float = 0.5
    """Unrecorded time per candidate before the first round of every repeat."""
    round_seconds: float = 0.25
    """Length of one candidate's turn."""
    settle_seconds: float = 0.05
    """Unrecorded time at the start of every round, in which caches fill and the worker threads of the previous candidate
    (which spin for a while after its last call) go to sleep."""

    @classmethod
    def of(cls, *, repeats: int, seconds: float) -> Self:
        """A schedule whose turns and warm-ups are no longer than what is recorded."""
        usual = cls()
        return cls(
            repeats=repeats,
            seconds=seconds,
            warmup_seconds=min(usual.warmup_seconds, seconds),
            round_seconds=min(usual.round_seconds, seconds),
            settle_seconds=min(usual.settle_seconds, seconds),
        )

    @property
    def rounds(self) -> int:
        """Turns of each candidate in a repeat."""
        return max(2, round(self.seconds / self.round_seconds))

    def check(self) -> None:
        """Refuse what cannot be measured.

        Raises:
            ValueError: repeats or a time that is not positive and finite.
        """
        spans = (self.seconds, self.round_seconds)
        if self.repeats < 1 or not all(math.isfinite(span) and span > 0 for span in spans):
            raise ValueError(
                f"repeats {self.repeats}, seconds {self.seconds} and round_seconds {self.round_seconds} must all be "
                "positive and finite"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Turns(Generic[Outcome]):
    """What one candidate does in its turns; each is told for how many seconds."""

    measure: Callable[[float], Outcome]
    """At least one call, recorded."""
    settle: Callable[[float], object]
    """At least one call, not recorded."""


def interleaved(
    candidates: Mapping[str, Turns[Outcome]], schedule: Schedule, *, tell: Callable[[str], None]
) -> dict[str, list[list[Outcome]]]:
    """Let candidates take turns.

    Args:
        candidates: by name.
        schedule: how long.
        tell: told each repeat: ``repeat 1 of 3``.

    Returns:
        Per candidate its repeats, and in each its rounds; rounds of the same place ran right after one another.
    """
    recorded: dict[str, list[list[Outcome]]] = {name: [] for name in candidates}
    for repeat in range(schedule.repeats):
        tell(f"repeat {repeat + 1} of {schedule.repeats}")
        for name, turns in candidates.items():
            recorded[name].append([])
            turns.measure(schedule.warmup_seconds)
        for _ in range(schedule.rounds):
            for name, turns in candidates.items():
                turns.settle(schedule.settle_seconds)
                recorded[name][-1].append(turns.measure(schedule.round_seconds))
    return recorded
