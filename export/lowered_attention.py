"""Attention written with standard operators only, the form in which a model is traced.

The pieces are modules, so that every node of the exported graph carries the name of the piece it belongs to:
``scores`` (product of queries and keys, mask), ``probabilities`` (the softmax variant), ``context`` (product with the
values, gate) and ``gate``. :mod:`export.lowering` attaches them to each attention layer of a copy of the model.

Legend: B batch, T query positions, S key positions, H heads, G heads of keys and values (H of them, or fewer that each serve
H / G neighbouring queries), d features per head, D = H * d, M hidden units of a gate. A mask is (B, 1, 1, S) in an encoder
and (B, 1, T, S) in a decoder; images have none.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from train.attention.gates import Gate, MlpGate, block_matrix
from train.attention.quiet_attention import MASK_VALUE
from train.attention.settings import AttentionSettings
from train.attention.stored_prefix import prefix_of


class Scores(nn.Module):
    """``Q K'`` plus the mask, where there is one; ``1/sqrt(d)`` is already part of the query projection."""

    def forward(self, query_BHTd: Tensor, key_BGSd: Tensor, mask: Tensor | None) -> Tensor:
        """Masked scores (B, H, T, S)."""
        key_BHSd = per_query_head(key_BGSd, num_heads=query_BHTd.shape[1])
        scores_BHTS = torch.matmul(query_BHTd, key_BHSd.transpose(2, 3))
        return scores_BHTS if mask is None else scores_BHTS + mask


def per_query_head(x_BGSd: Tensor, *, num_heads: int) -> Tensor:
    """Keys or values repeated for each query head that they serve, (B, H, S, d); themselves where every head has its own."""
    _, G, _, d = x_BGSd.shape
    if num_heads == G:
        return x_BGSd
    return x_BGSd.unsqueeze(2).expand(-1, -1, num_heads // G, -1, -1).reshape(x_BGSd.shape[0], num_heads, -1, d)


class Probabilities(nn.Module):
    """Vanilla softmax, and the base of the variants."""

    def forward(self, scores_BHTS: Tensor, mask: Tensor | None) -> Tensor:
        """Probabilities (B, H, T, S) from masked scores."""
        return torch.softmax(scores_BHTS, dim=-1)


class ClippedProbabilities(Probabilities):
    """``clip((zeta - gamma) softmax(x) + gamma, 0, 1)`` written out: the literal form."""

    def __init__(self, *, gamma: float, zeta: float) -> None:
        super().__init__()
        self.gamma = gamma
        self.zeta = zeta

    def forward(self, scores_BHTS: Tensor, mask: Tensor | None) -> Tensor:
        """See :class:`Probabilities`."""
        stretched_BHTS = torch.softmax(scores_BHTS, dim=-1) * (self.zeta - self.gamma) + self.gamma
        return torch.clamp(stretched_BHTS, 0.0, 1.0)


class ThresholdedProbabilities(Probabilities):
    """``relu(softmax(x) - t)``: clipped softmax with zeta = 1, divided by ``1 - gamma``.

    With zeta = 1 the upper clip never binds, so ``clip((1 - gamma) p + gamma, 0, 1) = (1 - gamma) relu(p - t)`` with
    ``t = -gamma / (1 - gamma)``; the factor goes into the value projection.
    """

    def __init__(self, *, gamma: float) -> None:
        super().__init__()
        self.threshold = -gamma / (1.0 - gamma)

    def forward(self, scores_BHTS: Tensor, mask: Tensor | None) -> Tensor:
        """See :class:`Probabilities`; the result is the probability over ``1 - gamma``."""
        return torch.relu(torch.softmax(scores_BHTS, dim=-1) - self.threshold)


class RowGamma(nn.Module):
    """``gamma = -alpha / n``, n the number of keys that a query sees: in an encoder the same for all queries of a sequence."""

    def __init__(self, *, alpha: float) -> None:
        super().__init__()
        self.alpha = alpha

    def forward(self, mask: Tensor | None, *, num_keys: int) -> Tensor | float:
        """(B, 1, 1, 1) or (B, 1, T, 1), a query that sees no key counts as one with one; one number where nothing is masked."""
        if mask is None:
            return -self.alpha / num_keys
        keys = (mask > MASK_VALUE / 2).to(mask.dtype)
        return -self.alpha / keys.sum(dim=-1, keepdim=True).clamp_min(1.0)


class ClippedPerRowProbabilities(Probabilities):
    """Clipped softmax with the gamma of :class:`RowGamma`.

    No constant is common to all sequences, so it is written out in both lowerings.
    """

    def __init__(self, *, alpha: float, zeta: float) -> None:
        super().__init__()
        self.gamma = RowGamma(alpha=alpha)
        self.zeta = zeta

    def forward(self, scores_BHTS: Tensor, mask: Tensor | None) -> Tensor:
        """See :class:`Probabilities`."""
        gamma = self.gamma(mask, num_keys=scores_BHTS.shape[-1])
        stretched_BHTS = torch.softmax(scores_BHTS, dim=-1) * (self.zeta - gamma) + gamma
        return torch.clamp(stretched_BHTS, 0.0, 1.0)


class OffByOneProbabilities(Probabilities):
    """``exp(x_j) / (1 + sum_k exp(x_k))``: softmax with one more key of score 0, whose probability is dropped."""

    def forward(self, scores_BHTS: Tensor, mask: Tensor | None) -> Tensor:
        """See :class:`Probabilities`; a row sums to less than 1, and to 0 where every key is masked."""
        return torch.softmax(nn.functional.pad(scores_BHTS, (0, 1)), dim=-1)[..., :-1]


class Context(nn.Module):
    """``P V``, heads last, times the gate where the layer has one."""

    def forward(self, probabilities_BHTS: Tensor, value_BGSd: Tensor, gate_BTH: Tensor | None) -> Tensor:
        """Context (B, T, H, d)."""
        value_BHSd = per_query_head(value_BGSd, num_heads=probabilities_BHTS.shape[1])
        context_BTHd = torch.matmul(probabilities_BHTS, value_BHSd).transpose(1, 2)
        return context_BTHd if gate_BTH is None else context_BTHd * gate_BTH.unsqueeze(-1)


class LoweredGate(nn.Module):
    """A gate as ordinary linear layers: per-head weights laid out as one block matrix, ``sigmoid``, then the scale.

    Args:
        gate: the gate of a checkpoint; its weights are copied.
        fold_scale: leave the scale to the output projection.
    """

    def __init__(self, gate: Gate, *, fold_scale: bool) -> None:
        super().__init__()
        weight_HI = gate.get_parameter("weight").detach()
        self.hidden = (
            linear_of(block_matrix(gate.hidden_weight.detach()), gate.hidden_bias.detach())
            if isinstance(gate, MlpGate)
            else None
        )
        self.projection = linear_of(block_matrix(weight_HI) if weight_HI.ndim == 3 else weight_HI, gate.bias.detach())
        self.factor = 1.0 if fold_scale else float(gate.scale)

    def forward(self, hidden_BTD: Tensor, sites: object = None) -> Tensor:
        """Factor on each head's context (B, T, H), without the scale where that is folded."""
        units_BTM = hidden_BTD if self.hidden is None else torch.relu(self.hidden(hidden_BTD))
        gate_BTH = torch.sigmoid(self.projection(units_BTM))
        return gate_BTH if self.factor == 1.0 else gate_BTH * self.factor


def linear_of(weight_OI: Tensor, bias_O: Tensor) -> nn.Linear:
    """A linear layer with the given weights, copied."""
    linear = nn.Linear(weight_OI.shape[1], weight_OI.shape[0])
    with torch.no_grad():
        linear.weight.copy_(weight_OI)
        linear.bias.copy_(bias_O)
    return linear


def lowered_probabilities(settings: AttentionSettings, *, fold: bool) -> Probabilities:
    """The softmax variant of ``settings``, in its short form where ``fold`` is set and :func:`folds_clip` agrees."""
    if settings.softmax == "clipped":
        if fold and folds_clip(settings):
            return ThresholdedProbabilities(gamma=settings.clip_gamma)
        return ClippedProbabilities(gamma=settings.clip_gamma, zeta=settings.zeta)
    if settings.softmax == "clipped_per_row":
        assert settings.alpha is not None
        return ClippedPerRowProbabilities(alpha=settings.alpha, zeta=settings.zeta)
    return OffByOneProbabilities() if settings.softmax == "off_by_one" else Probabilities()


def folds_clip(settings: AttentionSettings) -> bool:
    """Whether the clip has an exact short form: one gamma for all rows, and zeta = 1 so that only 0 can bind."""
    return settings.softmax == "clipped" and settings.zeta == 1.0


def lowered_attention(
    module: nn.Module,
    query_BHTd: Tensor,
    key_BGSd: Tensor,
    value_BGSd: Tensor,
    attention_mask: Tensor | None,
    *,
    quiet_gate: Tensor | None = None,
    **_unused: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in place of its own attention, on a layer that :mod:`export.lowering` prepared.

    ``scaling`` and ``dropout``, which transformers passes, have no meaning here: the scale is part of the query
    projection and a traced model is in evaluation mode.

    Returns:
        The context (B, T, H, d), and no attention matrix.
    """
    if (prefix := prefix_of(module)) is not None:
        key_BGSd, value_BGSd = prefix.before_keys(key_BGSd), prefix.before_values(value_BGSd)
        attention_mask = None if attention_mask is None else prefix.before_mask(attention_mask)
    scores_BHTS = module.get_submodule("scores")(query_BHTd, key_BGSd, attention_mask)
    probabilities_BHTS = module.get_submodule("probabilities")(scores_BHTS, attention_mask)
    return module.get_submodule("context")(probabilities_BHTS, value_BGSd, quiet_gate), None
