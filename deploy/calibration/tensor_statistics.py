"""What calibration remembers of one tensor, updated batch by batch in constant memory.

Extremes, running extremes, counts, and for the methods that search a range a histogram. Everything but the running
extremes is independent of the order of the data and of how it was cut into shards.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from deploy.calibration.histogram import Histogram

MOMENTUM = 0.9
"""Share of the past in the running extremes (PAPER.md, section 5: running min-max, momentum 0.9)."""

Values = NDArray[np.floating[Any]]


class TensorStatistics:
    """Streaming statistics of one tensor.

    Args:
        with_histogram: also keep the 2,048-bin histogram that ``percentile``, ``mse`` and ``entropy`` read.
        unit_interval: the values lie in [0, 1] by construction (softmax, sigmoid).
        momentum: share of the past in the running extremes, in [0, 1).

    Raises:
        ValueError: a momentum outside its range.
    """

    def __init__(
        self, *, with_histogram: bool = False, unit_interval: bool = False, momentum: float = MOMENTUM
    ) -> None:
        if not 0.0 <= momentum < 1.0:
            raise ValueError(f"momentum is {momentum}; expected at least 0 and below 1")
        self.unit_interval = unit_interval
        self.momentum = momentum
        self.count = 0
        """Finite values seen."""
        self.nonfinite = 0
        """NaN and infinite values seen; they enter nothing else."""
        self.low = math.inf
        """Smallest value."""
        self.high = -math.inf
        """Largest value."""
        self.batches = 0
        """Batches closed so far."""
        self.running_low = 0.0
        """Exponential mean of the batches' smallest values."""
        self.running_high = 0.0
        """Exponential mean of the batches' largest values."""
        self.histogram = Histogram() if with_histogram else None
        self._batch_low = math.inf
        self._batch_high = -math.inf

    @property
    def amax(self) -> float:
        """Largest absolute value."""
        return max(abs(self.low), abs(self.high)) if self.count else 0.0

    def update(self, values: Values) -> None:
        """Take in one whole batch of values, an array of any shape."""
        self.observe([values])
        self.close_batch()

    def observe(self, parts: Iterable[Values]) -> None:
        """Take in parts of the current batch; its running extremes change only with :meth:`close_batch`."""
        for part in parts:
            values = part
            if not values.size:
                continue
            if values.dtype == np.float16:
                values = values.astype(np.float32)
            with np.errstate(invalid="ignore"):  # NaN is what the next line looks for
                low, high = float(values.min()), float(values.max())
            if not (math.isfinite(low) and math.isfinite(high)):
                finite = np.isfinite(values)
                self.nonfinite += values.size - int(np.count_nonzero(finite))
                values = values[finite]
                if not values.size:
                    continue
                low, high = float(values.min()), float(values.max())
            self.count += values.size
            self.low, self.high = min(self.low, low), max(self.high, high)
            self._batch_low, self._batch_high = min(self._batch_low, low), max(self._batch_high, high)
            if self.histogram is not None:
                self.histogram.fit(self.low, self.high)
                self.histogram.add(values)

    def close_batch(self) -> None:
        """End the current batch: the first one sets the running extremes, the others move them by ``1 - momentum``."""
        if self._batch_low > self._batch_high:
            return
        keep = self.momentum if self.batches else 0.0
        self.running_low = keep * self.running_low + (1 - keep) * self._batch_low
        self.running_high = keep * self.running_high + (1 - keep) * self._batch_high
        self.batches += 1
        self._batch_low, self._batch_high = math.inf, -math.inf

    def merge(self, other: Self) -> None:
        """Add another shard's statistics of the same tensor.

        Counts, extremes and histogram become exactly those of all the data; running extremes become the mean of the
        shards', weighted by their batches.

        Raises:
            ValueError: the two were not collected in the same way.
        """
        for name in ("unit_interval", "momentum"):
            if getattr(self, name) != getattr(other, name):
                raise ValueError(f"{name} differs: {getattr(self, name)} and {getattr(other, name)}")
        if (self.histogram is None) != (other.histogram is None):
            raise ValueError("one shard has a histogram and the other has none")
        batches = self.batches + other.batches
        if batches:
            share = other.batches / batches
            self.running_low += share * (other.running_low - self.running_low)
            self.running_high += share * (other.running_high - self.running_high)
        self.batches = batches
        self.nonfinite += other.nonfinite
        self.count += other.count
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        if self.histogram is not None and other.histogram is not None and self.count:
            self.histogram.merge(other.histogram, low=self.low, high=self.high)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a JSON file; the extremes of a tensor without values are null."""
        values: dict[str, Any] = {
            "count": self.count,
            "nonfinite": self.nonfinite,
            "min": self.low if self.count else None,
            "max": self.high if self.count else None,
            "amax": self.amax,
            "batches": self.batches,
            "running_min": self.running_low,
            "running_max": self.running_high,
            "momentum": self.momentum,
            "unit_interval": self.unit_interval,
        }
        return values if self.histogram is None else values | {"histogram": self.histogram.to_dict()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Rebuild from :meth:`to_dict`.

        Raises:
            KeyError: an entry is missing.
            ValueError: an entry has a value that no statistics have.
        """
        statistics = cls(unit_interval=bool(values["unit_interval"]), momentum=float(values["momentum"]))
        statistics.count, statistics.nonfinite = int(values["count"]), int(values["nonfinite"])
        statistics.batches = int(values["batches"])
        if statistics.count:
            statistics.low, statistics.high = float(values["min"]), float(values["max"])
        statistics.running_low, statistics.running_high = float(values["running_min"]), float(values["running_max"])
        if "histogram" in values:
            statistics.histogram = Histogram.from_dict(values["histogram"])
        return statistics
