"""Outlier penalty: what keeps named tensors of a model within a width that 8 bits resolve well.

With ``r = |x| / width``, an element costs ``r^p`` up to the knee ``k`` and continues beyond it as the parabola in ``r`` with the same value and
slope, ``k^p + (p/2) k^(p-2) (r^2 - k^2)``. Elements below the width cost next to nothing, so the bulk of a tensor is
free. Pretrained models start with FFN outputs of 200 to 300, 40 to 60 widths out: there a plain fourth power has gradients 10^5
times those at the width, and the first updates would serve a handful of elements alone. The parabola's gradient is
proportional to ``x``: every outlier is asked to shrink at the same relative rate, and no float32 or clipped step is upset.

The penalty of a kind of tensor is the mean over its valid elements and over layers; kinds are added.

Shapes: B batch, T tokens, D features.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from train.families.known_families import TENSOR_KINDS, TensorKind
from train.observation.named_tensors import kind_of


def default_widths(*, norm_ratio: float = 2.0, inner_ratio: float = 0.0) -> dict[TensorKind, float]:
    """The tensors that are penalised unless a caller says otherwise: what FFNs write and LayerNorms make of the stream.

    Args:
        inner_ratio: the same for the inner units of the FFNs, 0 to leave them alone. Their bulk is near 0 and a symmetric scale
            spends half of its steps on values that GELU never gives, so their largest values cost most of all sites.
        norm_ratio: width on LayerNorm outputs as a multiple of that on FFN outputs. LayerNorm outputs enter linear layers,
            but the stream needs some of their spread: too narrow costs the float model more than it spares the integers.
    """
    widths: dict[TensorKind, float] = {
        "ffn_output": 1.0,
        "ln_output.attention": norm_ratio,
        "ln_output.ffn": norm_ratio,
    }
    return widths | ({"ffn_inner": inner_ratio} if inner_ratio else {})


@dataclass(frozen=True, kw_only=True, slots=True)
class PenaltySettings:
    """Which tensors are penalised, from what size on, how steeply.

    Raises:
        ValueError: a value is outside its range, or no tensor is named.
    """

    width: float = 5.0
    """Absolute value from which an element of an ``ffn_output`` costs noticeably."""
    power: float = 4.0
    """Exponent p up to the knee, at least 2."""
    knee: float = 8.0
    """Multiple k of the width from which the cost grows as a parabola; infinite for the plain power."""
    relative_widths: Mapping[TensorKind, float] = field(default_factory=default_widths)
    """Penalised kinds of tensors, each with its width as a multiple of ``width``."""

    def __post_init__(self) -> None:
        """Check every value."""
        if not 0 < self.width < math.inf:
            raise ValueError(f"penalty width is {self.width}; expected a positive number")
        if not 2 <= self.power < math.inf:
            raise ValueError(f"penalty power is {self.power}; expected at least 2")
        if not self.knee >= 1:
            raise ValueError(f"penalty knee is {self.knee}; expected at least 1 width")
        if not self.relative_widths:
            raise ValueError(f"the penalty names no tensor; known are {', '.join(TENSOR_KINDS)}")
        for kind, relative in self.relative_widths.items():
            if kind not in TENSOR_KINDS:
                raise ValueError(f"unknown tensor '{kind}' in the penalty; known are {', '.join(TENSOR_KINDS)}")
            if not 0 < relative < math.inf:
                raise ValueError(f"relative width of '{kind}' is {relative}; expected a positive number")


def outlier_penalty(
    tensors: Mapping[str, torch.Tensor], mask_BT: torch.Tensor | None, settings: PenaltySettings
) -> torch.Tensor:
    """Penalty of one forward pass.

    Args:
        tensors: named tensors (B, T, D) as :func:`train.observation.named_tensors.named_tensors` collects them, with gradient history; names of
            other kinds are left alone.
        mask_BT: 1 on real tokens; ``None``: all are.
        settings: see :class:`PenaltySettings`.

    Returns:
        Non-negative float32 scalar with gradient history, whatever the tensors' dtype.
    """
    by_kind: dict[TensorKind, list[torch.Tensor]] = {}
    for name, x_BTD in tensors.items():
        kind = kind_of(name)
        if kind in settings.relative_widths:
            width = settings.width * settings.relative_widths[kind]
            by_kind.setdefault(kind, []).append(_mean_cost(x_BTD, mask_BT, width=width, settings=settings))
    assert by_kind, "none of the penalised tensors was collected"
    return torch.stack([torch.stack(costs).mean() for costs in by_kind.values()]).sum()


def _mean_cost(
    x_BTD: torch.Tensor, mask_BT: torch.Tensor | None, *, width: float, settings: PenaltySettings
) -> torch.Tensor:
    squares_BTD = (x_BTD.float() / width).square()
    half = settings.power / 2
    if math.isinf(settings.knee):
        cost_BTD = squares_BTD.pow(half)
    else:
        knee_square = settings.knee**2
        below_BTD = squares_BTD.clamp(max=knee_square)
        cost_BTD = below_BTD.pow(half) + half * knee_square ** (half - 1) * (squares_BTD - below_BTD)
    if mask_BT is None:
        return cost_BTD.mean()
    count = mask_BT.sum() * x_BTD.shape[-1]
    return (cost_BTD * mask_BT[..., None]).sum() / count.clamp(min=1)


@torch.no_grad()
def largest_magnitude(tensors: Mapping[str, torch.Tensor], mask_BT: torch.Tensor | None) -> torch.Tensor:
    """Largest absolute value on the valid positions of named tensors (B, T, D); float32 scalar."""
    return torch.stack(
        [(x_BTD if mask_BT is None else x_BTD * mask_BT[..., None]).abs().max().float() for x_BTD in tensors.values()]
    ).max()
