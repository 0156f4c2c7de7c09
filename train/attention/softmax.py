"""Softmax variants whose rows may say "attend to nothing": clipped, clipped per row, off by one.

Every function takes scores to which the mask is already added as a bounded constant (``train.attention.MASK_VALUE``,
never minus infinity), so a fully masked row stays finite: it gives a uniform row in the softmax of the vanilla and
clipped kinds and zeros in the off-by-one kind. Dropout comes afterwards; rows are not renormalised.

Shapes: B batch, H heads, T queries, S keys.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from train.attention.settings import AttentionSettings


def clipped_softmax(scores_BHTS: torch.Tensor, *, gamma: float | torch.Tensor, zeta: float = 1.0) -> torch.Tensor:
    """``clip((zeta - gamma) * softmax(x) + gamma, 0, 1)`` (Quantizable Transformers, section 4.1).

    With ``zeta = 1`` the upper clip cannot bind, ``(1 - gamma) p + gamma <= 1``, and a ReLU does the same work.

    Args:
        scores_BHTS: masked scores, any floating dtype.
        gamma: at most 0; a number, or a tensor that broadcasts against the scores (one value per row).
        zeta: at least 1.

    Returns:
        Probabilities in [0, 1], shape and dtype of the scores. With ``gamma < 0`` a row may sum to less than 1.
    """
    stretched_BHTS = torch.softmax(scores_BHTS, dim=-1) * (zeta - gamma) + gamma
    return torch.relu(stretched_BHTS) if zeta == 1.0 else torch.clamp(stretched_BHTS, 0.0, 1.0)


def clipped_softmax_per_row(
    scores_BHTS: torch.Tensor, *, alpha: float, num_keys: int | torch.Tensor, zeta: float = 1.0
) -> torch.Tensor:
    """Clipped softmax with ``gamma_i = -alpha / n_i``, where ``n_i`` is the number of keys that row i attends to.

    In a causal model row i attends to ``i + 1`` keys; in an encoder every row attends to all keys that are not padding.
    So the clip means the same at every length, which a gamma fixed at the training length does not.

    Args:
        scores_BHTS: masked scores.
        alpha: at least 0; 2 to 4 is usual for encoders.
        num_keys: ``n_i``, a number or a tensor that broadcasts against the scores; a row with no keys counts as one.
        zeta: at least 1.
    """
    if isinstance(num_keys, torch.Tensor):
        return clipped_softmax(scores_BHTS, gamma=-alpha / num_keys.clamp_min(1).to(scores_BHTS.dtype), zeta=zeta)
    return clipped_softmax(scores_BHTS, gamma=-alpha / max(num_keys, 1), zeta=zeta)


def softmax_off_by_one(scores_BHTS: torch.Tensor) -> torch.Tensor:
    """``exp(x_j) / (1 + sum_k exp(x_k))``: the softmax of a row that has one more score, 0, dropped afterwards.

    Written that way it needs no maximum of its own: the ordinary softmax shifts by the largest score, 0 included.
    """
    return torch.softmax(F.pad(scores_BHTS, (0, 1)), dim=-1)[..., :-1]


def attention_probabilities(
    scores_BHTS: torch.Tensor, settings: AttentionSettings, *, num_keys: int | torch.Tensor
) -> torch.Tensor:
    """Apply the softmax kind of ``settings``; ``num_keys`` as in :func:`clipped_softmax_per_row`."""
    if settings.softmax == "clipped":
        return clipped_softmax(scores_BHTS, gamma=settings.clip_gamma, zeta=settings.zeta)
    if settings.softmax == "clipped_per_row":
        assert settings.alpha is not None
        return clipped_softmax_per_row(scores_BHTS, alpha=settings.alpha, num_keys=num_keys, zeta=settings.zeta)
    if settings.softmax == "off_by_one":
        return softmax_off_by_one(scores_BHTS)
    return torch.softmax(scores_BHTS, dim=-1)
