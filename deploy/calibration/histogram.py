"""A streaming histogram of 2,048 bins that widens by itself, and merges exactly.

The bin width is always a power of two and bin ``i`` is always ``[i * width, (i + 1) * width)``. So widening is the merge
of neighbours, the state is a function of the values alone, and neither the order of the data nor the way it is cut into
shards can change it. The width is the smallest that the values seen so far allow.
"""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

BINS = 2048
# Bin numbers stay below 2^22, so that they are exact in float32.
_INDEX_BITS = 22
# With the smallest width, 1 / width is still a normal float32.
_SMALLEST_EXPONENT = -126
_LARGEST_FLOAT32_EXPONENT = 126


class Histogram:
    """Counts of finite values in 2,048 bins of one power-of-two width."""

    def __init__(self) -> None:
        self.exponent = _SMALLEST_EXPONENT
        """The bin width is ``2 ** exponent``."""
        self.start = 0
        """Number of the first bin: its left edge is ``start * width``."""
        self.counts: NDArray[np.int64] = np.zeros(BINS, dtype=np.int64)
        """Values per bin, (2048,)."""
        self.zeros = 0
        """How many values are exactly 0: quantization never moves those."""

    @property
    def width(self) -> float:
        """Width of every bin."""
        return math.ldexp(1.0, self.exponent)

    @property
    def total(self) -> int:
        """Number of values."""
        return int(self.counts.sum())

    def edges(self) -> NDArray[np.float64]:
        """Bin edges, (2049,)."""
        return (self.start + np.arange(BINS + 1, dtype=np.float64)) * self.width

    def fit(self, low: float, high: float) -> None:
        """Widen so that ``[low, high]``, the range of everything seen so far and of what comes next, has bins."""
        exponent = max(self.exponent, fitting_exponent(low, high))
        start = math.floor(math.ldexp(low, -exponent))
        if (exponent, start) != (self.exponent, self.start):
            filled = np.flatnonzero(self.counts)
            moved = ((self.start + filled) >> min(exponent - self.exponent, 62)) - start
            counts = np.zeros(BINS, dtype=np.int64)
            np.add.at(counts, moved, self.counts[filled])
            self.counts, self.exponent, self.start = counts, exponent, start

    def add(self, values: NDArray[np.floating[Any]]) -> None:
        """Count finite values that lie within the range of the last :meth:`fit`."""
        # Multiplying by a power of two is exact, so the floor is too; only what underflows (|x| < 2^-149 widths) becomes 0.
        exact = np.float32 if abs(self.exponent) <= _LARGEST_FLOAT32_EXPONENT else np.float64
        positions = np.multiply(values, exact(math.ldexp(1.0, -self.exponent)), dtype=np.result_type(values, exact))
        np.floor(positions, out=positions)
        positions -= exact(self.start)
        self.counts += np.bincount(positions.astype(np.intp).ravel(), minlength=BINS)
        self.zeros += values.size - int(np.count_nonzero(values))

    def merge(self, other: Self, *, low: float, high: float) -> None:
        """Add another histogram's counts; ``[low, high]`` is the range of both together."""
        self.fit(low, high)
        aligned = type(self)()
        aligned.exponent, aligned.start, aligned.counts = other.exponent, other.start, other.counts
        aligned.fit(low, high)
        assert (aligned.exponent, aligned.start) == (self.exponent, self.start)
        self.counts = self.counts + aligned.counts
        self.zeros += other.zeros

    def to_dict(self) -> dict[str, Any]:
        """Plain values; the counts up to the last filled bin as text, ``n*0`` for a run of empty bins."""
        return {
            "exponent": self.exponent,
            "start": self.start,
            "zeros": self.zeros,
            "counts": " ".join(_pack(self.counts)),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Rebuild from :meth:`to_dict`.

        Raises:
            ValueError: the counts are not counts of at most 2,048 bins.
        """
        histogram = cls()
        histogram.exponent, histogram.start = int(values["exponent"]), int(values["start"])
        histogram.zeros = int(values["zeros"])
        counts: list[int] = []
        for entry in str(values["counts"]).split():
            empty, _, _ = entry.partition("*")
            counts += [0] * int(empty) if entry.endswith("*0") else [int(entry)]
        if len(counts) > BINS or min(counts, default=0) < 0:
            raise ValueError(f"a histogram has {len(counts)} bins; expected at most {BINS} counts from 0")
        histogram.counts[: len(counts)] = counts
        return histogram


def fitting_exponent(low: float, high: float) -> int:
    """Exponent of the smallest power-of-two width whose aligned bins cover ``[low, high]`` with at most 2,048 of them."""
    largest = max(abs(low), abs(high))
    if largest == 0:
        return _SMALLEST_EXPONENT
    exponent = max(_SMALLEST_EXPONENT, math.frexp(largest)[1] - _INDEX_BITS)
    if high > low:
        exponent = max(exponent, math.frexp(high - low)[1] - 1 - BINS.bit_length())
    while math.floor(math.ldexp(high, -exponent)) - math.floor(math.ldexp(low, -exponent)) >= BINS:
        exponent += 1
    return exponent


def _pack(counts: NDArray[np.int64]) -> list[str]:
    entries: list[str] = []
    empty = 0
    for count in counts.tolist():
        if count:
            entries += [f"{empty}*0"] * (empty > 0) + [str(count)]
            empty = 0
        else:
            empty += 1
    return entries
