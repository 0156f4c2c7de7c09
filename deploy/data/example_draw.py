"""A random sample of a file's examples where not all are wanted: the first ones of an ordered file are not like the rest.

Every example gets a random key and those with the smallest keys are kept, so that a stream of any length takes the memory of the
sample alone, and a larger sample with the same seed holds the smaller one.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import numpy as np

Example = TypeVar("Example")
USUAL_SEED = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ExamplesUsed:
    """Which of a task's examples a score is from; with the data, it tells every one of them."""

    used: int
    available: int
    """In the data."""
    chosen: Literal["all", "drawn", "first"]
    seed: int | None = None
    """Of the draw."""

    def in_words(self) -> str:
        """For people."""
        if self.chosen == "all":
            return f"all {self.available:,}"
        how = f"drawn at random, seed {self.seed}" if self.chosen == "drawn" else "the first ones"
        return f"{self.used:,} of {self.available:,}, {how}"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Drawn(Generic[Example]):
    """What was drawn."""

    examples: list[Example]
    """In the order of the data."""
    indices: tuple[int, ...]
    """Of each in the data, from 0, ascending."""
    available: int
    seed: int

    @property
    def used(self) -> ExamplesUsed:
        """For a report."""
        if len(self.examples) == self.available:
            return ExamplesUsed(used=self.available, available=self.available, chosen="all")
        return ExamplesUsed(used=len(self.examples), available=self.available, chosen="drawn", seed=self.seed)


def draw(examples: Iterable[Example], *, limit: int | None, seed: int | None = None) -> Drawn[Example]:
    """Draw without repetition; data, limit and seed decide alone.

    Args:
        examples: all of the data, read to its end.
        limit: how many; all where there are not more, or where it is None.
        seed: of the draw, 0 by default.

    Raises:
        ValueError: a limit below 1 or a seed below 0.
    """
    seed = USUAL_SEED if seed is None else seed
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}; expected at least 1")
    if seed < 0:
        raise ValueError(f"seed is {seed}; expected at least 0")
    if limit is None:
        found = list(examples)
        return Drawn(examples=found, indices=tuple(range(len(found))), available=len(found), seed=seed)
    generator = np.random.default_rng(seed)
    kept: list[tuple[float, int, Example]] = []  # a heap whose first entry has the largest key
    available = 0
    for index, example in enumerate(examples):
        entry = (-float(generator.random()), index, example)
        if len(kept) < limit:
            heapq.heappush(kept, entry)
        else:
            heapq.heappushpop(kept, entry)
        available += 1
    kept.sort(key=lambda entry: entry[1])
    return Drawn(
        examples=[example for _, _, example in kept],
        indices=tuple(index for _, index, _ in kept),
        available=available,
        seed=seed,
    )
