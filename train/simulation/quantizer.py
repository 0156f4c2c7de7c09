"""The numbers of simulated quantization: ranges from observed values, scales from ranges, rounded weights.

PAPER, section 5: ``q = clip(round(x / s) + z, q_min, q_max)`` and ``x' = s (q - z)``, static and per tensor. Asymmetric activations of b bits
take 0 .. 2^b - 1 with a free zero point, symmetric ones and weights zero point 0; every range contains 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch

RangeMethod = Literal["running-minmax", "minmax"]
WeightRange = Literal["minmax", "mse"]

RANGE_METHODS: tuple[RangeMethod, ...] = get_args(RangeMethod)
WEIGHT_RANGES: tuple[WeightRange, ...] = get_args(WeightRange)

_MOMENTUM = 0.9  # PAPER, section 5: r <- 0.9 r + 0.1 new, the first batch sets it
_HISTOGRAM_BINS = 4096
_SMALLEST_RANGE = float(torch.finfo(torch.float32).tiny) * 2.0**16  # its 16-bit step is still a normal float32
_RATIOS = 200  # candidates of the MSE search: k / 200 of the largest absolute value


def check_bits(bits: int, *, what: str) -> None:
    """Refuse a bit width that is not simulated.

    Raises:
        ValueError: outside 2 to 16.
    """
    if not 2 <= bits <= 16:
        raise ValueError(f"{what} is {bits}; expected 2 to 16 bits")


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantizerGrid:
    """One tensor's integers: ``x' = scale * (clip(round(x / scale) + zero_point, q_min, q_max) - zero_point)``."""

    scale: float
    zero_point: int
    q_min: int
    q_max: int

    def fake_quantize(self, x: torch.Tensor) -> torch.Tensor:
        """Round a tensor of any shape to the grid; same dtype, computed in float32. Half-way values go to the even integer.

        The zero point only shifts the clip: ``round(x / s)`` is clipped to ``[q_min - z, q_max - z]``. Four passes in place are four
        times as fast on a CPU as torch's fake quantization, which also makes a mask for gradients that nobody needs.
        """
        rounded = (x.float() / self.scale).round_()
        rounded.clamp_(self.q_min - self.zero_point, self.q_max - self.zero_point)
        return rounded.mul_(self.scale).to(x.dtype)


def activation_grid(low: float, high: float, *, bits: int, symmetric: bool) -> QuantizerGrid:
    """Grid of an activation whose values lie in [low, high]; 0 is included whatever they are.

    A tensor that was always 0 (or too small for a float32 scale) gets the step of a range of 1: later values are neither lost nor
    divided by 0.
    """
    low, high = min(low, 0.0), max(high, 0.0)
    if symmetric:
        q_max = 2 ** (bits - 1) - 1
        return QuantizerGrid(scale=_not_empty(max(-low, high)) / q_max, zero_point=0, q_min=-q_max - 1, q_max=q_max)
    levels = 2**bits - 1
    scale = _not_empty(high - low) / levels
    return QuantizerGrid(scale=scale, zero_point=round(-low / scale), q_min=0, q_max=levels)


def weight_grid(weight: torch.Tensor, *, bits: int, method: WeightRange) -> QuantizerGrid:
    """Symmetric per-tensor grid of a weight of any shape.

    ``minmax``: ``s = max|w| / (2^(b-1) - 1)``. ``mse``: the share of ``max|w|``, in steps of 1/200, whose grid has the least mean squared
    error, measured on a histogram of ``|w|`` with 4,096 bins (a bin is 1/32 of an 8-bit step: its width does not matter).
    """
    q_max = 2 ** (bits - 1) - 1
    magnitudes = weight.detach().float().abs()
    largest = float(magnitudes.max())
    share = 1.0
    if method == "mse" and largest >= _SMALLEST_RANGE:
        share = _share_of_least_error(magnitudes, largest, q_max=q_max)
    return QuantizerGrid(scale=_not_empty(share * largest) / q_max, zero_point=0, q_min=-q_max, q_max=q_max)


def _not_empty(width: float) -> float:
    return width if width >= _SMALLEST_RANGE else 1.0


def _share_of_least_error(magnitudes: torch.Tensor, largest: float, *, q_max: int) -> float:
    counts_N = torch.histc(magnitudes, bins=_HISTOGRAM_BINS, min=0.0, max=largest).double()
    width = largest / _HISTOGRAM_BINS
    centers_N = (torch.arange(_HISTOGRAM_BINS, device=counts_N.device, dtype=torch.float64) + 0.5) * width
    shares_K = torch.arange(1, _RATIOS + 1, device=counts_N.device, dtype=torch.float64) / _RATIOS
    steps_K1 = (shares_K * largest / q_max)[:, None]
    rounded_KN = steps_K1 * (centers_N / steps_K1).round().clamp(max=q_max)
    errors_K = ((rounded_KN - centers_N).square() * counts_N).sum(dim=1)
    return float(shares_K[errors_K.argmin()])


class ObservedRange:
    """Range of one tensor over calibration batches."""

    def __init__(self, name: str, method: RangeMethod) -> None:
        self._name, self._method = name, method
        self._low_high: tuple[float, float] | None = None

    def update(self, x: torch.Tensor, valid: torch.Tensor | None) -> None:
        """Take a batch in.

        Args:
            x: the tensor, any shape.
            valid: boolean, broadcastable to ``x``; invalid positions count as 0, which every range contains anyway.

        Raises:
            ValueError: a valid value is not finite.
        """
        shown = x if valid is None else x.masked_fill(~valid, 0.0)
        low, high = (float(value) for value in torch.aminmax(shown))
        if not (abs(low) < float("inf") and abs(high) < float("inf")):
            raise ValueError(f"calibration: '{self._name}' has a value that is not finite")
        if self._low_high is None:
            self._low_high = low, high
        elif self._method == "minmax":
            self._low_high = min(self._low_high[0], low), max(self._low_high[1], high)
        else:
            self._low_high = (
                _MOMENTUM * self._low_high[0] + (1.0 - _MOMENTUM) * low,
                _MOMENTUM * self._low_high[1] + (1.0 - _MOMENTUM) * high,
            )

    @property
    def low_high(self) -> tuple[float, float]:
        """The range so far; at least one batch must have been taken in."""
        assert self._low_high is not None
        return self._low_high
