"""Candidates of per-channel scales between two tensors, and the choice among them by the error of rounded products.

The candidates are ``max|x_j|^a / max|w_j|^(1 - a)`` (Xiao et al., "SmoothQuant", 2023; the principle: Nagel et al., "Data-Free
Quantization Through Weight Equalization and Bias Correction", 2019), and ``max(1, max|x_j| / q)`` for quantiles q of the maxima, which
lowers the largest channels and leaves the others alone. FFN inputs ask for the second form, where a few units carry everything.

Shapes: N tokens, I input and O output features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from train.simulation.quantizer import activation_grid, weight_grid
from train.weights.linear_inputs import LinearInput

_STRENGTHS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
_QUANTILES = (0.5, 0.8, 0.9, 0.97, 0.99)
_SMALLEST_SHARE = 1e-4
"""Of the largest channel: smaller ones count as that, a dead channel asks for no scale of its own."""
RANGE_SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)
"""Shares of ``max|w|`` tried as the range of a weight."""
_TINY = 1e-30


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """The scales that one pair of tensors got."""

    candidate: str
    """``none``, ``power 0.5`` or ``above 0.9``."""
    scales: torch.Tensor
    """(I,): what is read was divided by them, the weights that read it multiplied."""
    error_before: float
    """Squared error of the rounded output relative to its power, without scales; summed over outputs where there are several."""
    error_after: float


def best_scales(
    largest_I: torch.Tensor, largest_weight_I: torch.Tensor, error: Callable[[torch.Tensor], float]
) -> Choice:
    """Try the candidates.

    Args:
        largest_I: largest magnitude of each channel of the activation.
        largest_weight_I: largest magnitude of each column of the weights that read it.
        error: of scales.
    """
    errors = {name: (error(scales_I), scales_I) for name, scales_I in _candidates(largest_I, largest_weight_I)}
    best = min(errors, key=lambda name: errors[name][0])
    least, scales_I = errors[best]
    return Choice(candidate=best, scales=scales_I, error_before=errors["none"][0], error_after=least)


def _candidates(largest_I: torch.Tensor, largest_weight_I: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    yield "none", torch.ones_like(largest_I)
    x_I, w_I = (
        values.clamp(min=float(values.max()) * _SMALLEST_SHARE + _TINY) for values in (largest_I, largest_weight_I)
    )
    for strength in _STRENGTHS:
        scales_I = x_I**strength / w_I ** (1.0 - strength)
        yield f"power {strength:g}", scales_I / scales_I.log().mean().exp()
    for quantile in _QUANTILES:
        yield f"above {quantile:g}", (x_I / x_I.quantile(quantile)).clamp(min=1.0)


def rounded_input(
    read: LinearInput, scales_I: torch.Tensor, *, sample: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sampled tokens divided by ``scales_I``, on the 8-bit grid that covers all observed tokens, and their power.

    Args:
        read: what was observed, before any scale.
        scales_I: the scales.
        sample: (N, I) tokens to round instead, already divided.

    Returns:
        (N, I) rounded tokens, and (I,) mean squares of the tokens before rounding.
    """
    x_NI = read.sample / scales_I if sample is None else sample
    limit = float((read.largest / scales_I).max())
    grid = activation_grid(-limit, limit, bits=8, symmetric=True)
    return grid.fake_quantize(x_NI), x_NI.square().mean(dim=0)


def rounded_weight(weight_OI: torch.Tensor, power_I: torch.Tensor) -> torch.Tensor:
    """A weight on the 8-bit grid, of some shares of its range, with the least error weighed by the input's power."""
    best, least = weight_OI, float("inf")
    for share in RANGE_SHARES:
        limit = float(weight_OI.abs().max()) * share
        grid = weight_grid(torch.tensor([limit]), bits=8, method="minmax")
        rounded_OI = grid.fake_quantize(weight_OI)
        error = float(((rounded_OI - weight_OI).square() @ power_I).sum())
        if error < least:
            best, least = rounded_OI, error
    return best


def relative_error(y_NO: torch.Tensor, exact_NO: torch.Tensor) -> float:
    """Squared error as a share of the exact output's power."""
    return float((y_NO - exact_NO).square().sum() / exact_NO.square().sum().clamp(min=_TINY))
