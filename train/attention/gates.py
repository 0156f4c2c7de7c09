"""Gates: one sigmoid scalar per token and head that multiplies attention's context before the output projection.

A gate reads the hidden state that enters the attention block and starts at ``gate_init`` for every token: its last
weights are zero and its last bias is ``logit(gate_init)``.

On a pretrained model ``gate_scale = 1 / gate_init`` makes the product start at 1. Float rounding would leave it a
unit in the last place away for many ``gate_init``, and outputs would change. So then the last bias is moved by a few
units in the last place, and the scale with it, until ``scale * sigmoid(bias)`` is exactly 1.0 in float32
(:func:`gate_start`). The scale that results is stored with the weights, as the buffer ``scale``.

Per-head weights are kept compact (H, out, d) and applied as one matrix product with a block matrix.

Shapes: B batch, T tokens, D hidden size, H heads, d = D / H features of a head, M hidden units of a head's mlp gate.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import nn
from torch.nn import functional as F

from train.attention.attention_sites import SiteFunction, at_site
from train.attention.settings import AttentionSettings

_ULPS_SEARCHED = 256
_SIGMOID_PROBE = 67  # elements, so that both the vectorised body and the tail of the sigmoid kernel are covered


def block_matrix(weight_HOI: torch.Tensor) -> torch.Tensor:
    """Lay per-head weights (H, O, I) out as one (H * O, H * I) matrix, head h in the h-th diagonal block."""
    H, O, I = weight_HOI.shape  # noqa: E741
    eye_HH = torch.eye(H, dtype=weight_HOI.dtype, device=weight_HOI.device)
    return (weight_HOI[:, :, None, :] * eye_HH[:, None, :, None]).reshape(H * O, H * I)


def gate_start(settings: AttentionSettings) -> tuple[float, float]:
    """Last bias and scale of a gate that starts at ``gate_init``, each exact in float32.

    Where ``gate_scale * gate_init`` is 1 within 1e-6, the returned pair satisfies ``scale * sigmoid(bias) == 1.0``
    in float32; otherwise it is ``(logit(gate_init), gate_scale)``.
    """
    bias = torch.tensor(math.log(settings.gate_init / (1.0 - settings.gate_init)), dtype=torch.float32)
    if abs(settings.gate_scale * settings.gate_init - 1.0) > 1e-6:
        return float(bias), float(torch.tensor(settings.gate_scale, dtype=torch.float32))
    below, above = bias, bias
    for _ in range(_ULPS_SEARCHED):
        for candidate in (above, below):
            nearest = torch.sigmoid(candidate).reciprocal()
            for scale in (nearest, torch.nextafter(nearest, torch.tensor(torch.inf))):  # rounded down, it can miss 1
                if bool((torch.sigmoid(candidate.expand(_SIGMOID_PROBE).contiguous()) * scale == 1.0).all()):
                    return float(candidate), float(scale)
        above = torch.nextafter(above, torch.tensor(torch.inf))
        below = torch.nextafter(below, torch.tensor(-torch.inf))
    raise AssertionError(f"no float32 start of exactly 1 near gate_init {settings.gate_init}")


class Gate(nn.Module, ABC):
    """What every gate shares: the start, the scale and the sigmoid.

    Attributes:
        bias: (H,) last bias.
        scale: float32 scalar buffer, a factor on the sigmoid.
    """

    scale: torch.Tensor

    def __init__(self, settings: AttentionSettings, *, num_heads: int) -> None:
        super().__init__()
        bias, scale = gate_start(settings)
        self.bias = nn.Parameter(torch.full((num_heads,), bias))
        self.register_buffer("scale", torch.tensor(scale))

    @abstractmethod
    def logits(self, hidden_BTD: torch.Tensor, sites: SiteFunction | None) -> torch.Tensor:
        """Input of the sigmoid, (B, T, H)."""

    def forward(self, hidden_BTD: torch.Tensor, sites: SiteFunction | None = None) -> torch.Tensor:
        """Factor on each head's context, ``scale * sigmoid(logits)``.

        Args:
            hidden_BTD: hidden state that enters the attention block.
            sites: see ``train.attention.attention_sites``.

        Returns:
            (B, T, H), in (0, scale).
        """
        logits_BTH = at_site(sites, "gate_logits", self.logits(hidden_BTD, sites))
        return at_site(sites, "gate", torch.sigmoid(logits_BTH) * self.scale)


class LinearGate(Gate):
    """Per head, its own d features to one logit: H (d + 1) parameters."""

    def __init__(self, settings: AttentionSettings, *, num_heads: int, hidden_size: int) -> None:
        super().__init__(settings, num_heads=num_heads)
        self.weight = nn.Parameter(torch.zeros(num_heads, 1, hidden_size // num_heads))

    def logits(self, hidden_BTD: torch.Tensor, sites: SiteFunction | None) -> torch.Tensor:
        """See :class:`Gate`."""
        return F.linear(hidden_BTD, block_matrix(self.weight), self.bias)


class MlpGate(Gate):
    """Per head, its own d features to M hidden units (ReLU) to one logit: H (M (d + 2) + 1) parameters."""

    def __init__(
        self, settings: AttentionSettings, *, num_heads: int, hidden_size: int, generator: torch.Generator
    ) -> None:
        super().__init__(settings, num_heads=num_heads)
        assert settings.gate_hidden is not None
        head_size = hidden_size // num_heads
        bound = head_size**-0.5
        weight_HMd = torch.empty(num_heads, settings.gate_hidden, head_size)
        self.hidden_weight = nn.Parameter(weight_HMd.uniform_(-bound, bound, generator=generator))
        self.hidden_bias = nn.Parameter(torch.zeros(num_heads * settings.gate_hidden))
        self.weight = nn.Parameter(torch.zeros(num_heads, 1, settings.gate_hidden))

    def logits(self, hidden_BTD: torch.Tensor, sites: SiteFunction | None) -> torch.Tensor:
        """See :class:`Gate`."""
        units_BTM = torch.relu(F.linear(hidden_BTD, block_matrix(self.hidden_weight), self.hidden_bias))
        units_BTM = at_site(sites, "gate_hidden", units_BTM)
        return F.linear(units_BTM, block_matrix(self.weight), self.bias)


class AllHeadsLinearGate(Gate):
    """All D features to one logit per head: H (D + 1) parameters."""

    def __init__(self, settings: AttentionSettings, *, num_heads: int, hidden_size: int) -> None:
        super().__init__(settings, num_heads=num_heads)
        self.weight = nn.Parameter(torch.zeros(num_heads, hidden_size))

    def logits(self, hidden_BTD: torch.Tensor, sites: SiteFunction | None) -> torch.Tensor:
        """See :class:`Gate`."""
        return F.linear(hidden_BTD, self.weight, self.bias)


def build_gate(
    settings: AttentionSettings, *, num_heads: int, hidden_size: int, generator: torch.Generator | None = None
) -> Gate | None:
    """Gate of one attention layer in float32 on the CPU, or ``None`` for ``gate = "none"``.

    Args:
        settings: kind, hidden width, start and scale.
        num_heads: H.
        hidden_size: D; a multiple of H for gates whose heads read their own features.
        generator: draws the hidden weights of an ``mlp`` gate; by default one seeded with 0.
    """
    assert hidden_size % num_heads == 0 or settings.gate in ("none", "all_heads_linear")
    with torch.device("cpu"):  # also where a model is built without memory, on the meta device
        if settings.gate == "linear":
            return LinearGate(settings, num_heads=num_heads, hidden_size=hidden_size)
        if settings.gate == "mlp":
            generator = generator or torch.Generator().manual_seed(0)
            return MlpGate(settings, num_heads=num_heads, hidden_size=hidden_size, generator=generator)
        if settings.gate == "all_heads_linear":
            return AllHeadsLinearGate(settings, num_heads=num_heads, hidden_size=hidden_size)
    return None
