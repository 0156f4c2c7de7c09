"""What the calibration file of another tool says: a range per tensor name, and where it comes from."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class RangeTable:
    """A foreign calibration file, read."""

    format: str
    """``tensorrt`` or ``onnxruntime``."""
    origin: str
    """What the file says of its maker: version and calibrator, or method."""
    ranges: dict[str, tuple[float, float]]
    """Lowest and highest value by tensor name, in the file's order."""
    symmetric: bool
    """Whether it holds only how far values reach from 0: no range for unsigned integers follows from it."""
    model_sha256: str | None = None
    """Hash of the float graph, where the file tells."""
    not_for_accuracy: bool = False
    """Whether the file says that its data was random."""


def checked_range(low: float, high: float, *, tensor: str, name: str) -> tuple[float, float]:
    """The range itself.

    Raises:
        ValueError: an end that is not finite, or a range upside down.
    """
    if not (math.isfinite(low) and math.isfinite(high)) or low > high:
        raise ValueError(f"{name}: tensor '{tensor}' has the range [{low:g}, {high:g}]; expected finite ends in order")
    return low, high
