"""Attention written out: product, softmax variant, product.

:func:`observed_probabilities` is for whoever watches or replaces scores and probabilities. :func:`clipped_context` is the
path that trains: the same result without the copies. Its scale goes into the queries; the clip is one kernel, since

    clip((1 - gamma) p + gamma, 0, 1) = (1 - gamma) relu(p - t),  t = -gamma / (1 - gamma)

for ``zeta = 1``, and the factor goes into the values; and long rows are computed in blocks of queries whose probabilities
are computed a second time in the backward pass instead of being kept. A row needs all of its keys before it can be clipped, so blocks are
cut along the queries and every result is exact.

Shapes: B batch, H heads of queries, G heads of keys and values, T queries, S keys, d features of a head.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from train.attention.attention_sites import SiteFunction, at_site
from train.attention.masks import MASK_VALUE
from train.attention.settings import AttentionSettings
from train.attention.softmax import attention_probabilities

KEPT_PROBABILITIES = 2**26
"""Elements of (B, H, T, S) from which probabilities are computed twice instead of kept: 256 MiB per tensor and layer in float32."""
BLOCK_PROBABILITIES = 2**20
"""Elements of (B, H, block, S) that one block works on. Measured at (1, 4, 2048, 2048) on a CPU: an eighth of the memory for a third
more time; smaller blocks save little more and cost much (``benchmarks/training_step.py --long``)."""


def observed_probabilities(
    query_BHTd: torch.Tensor,
    key_BGSd: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    scale: float,
    settings: AttentionSettings,
    sites: SiteFunction | None,
) -> torch.Tensor:
    """Probabilities (B, H, T, S), with ``sites`` called on scores, mask and probabilities.

    Args:
        query_BHTd: queries.
        key_BGSd: keys; G divides H.
        mask: additive, broadcastable to (B, 1, T, S); ``None``: every key.
        scale: factor on the scores.
        settings: kind of softmax.
        sites: see ``train.attention.attention_sites``.
    """
    scores_BHTS = product_per_group(query_BHTd, key_BGSd.transpose(-2, -1))
    if scale != 1.0:  # an exporter that folded the scale into the query projection gets no multiplication by 1
        scores_BHTS = scores_BHTS * scale
    scores_BHTS = at_site(sites, "scores", scores_BHTS)
    if mask is not None:
        mask = at_site(sites, "mask", mask)
        scores_BHTS = scores_BHTS + mask
    num_keys = _num_keys(mask, key_BGSd, settings)
    return at_site(sites, "probabilities", attention_probabilities(scores_BHTS, settings, num_keys=num_keys))


def clipped_context(
    query_BHTd: torch.Tensor,
    key_BGSd: torch.Tensor,
    value_BGSd: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    scale: float,
    settings: AttentionSettings,
    dropout: float = 0.0,
    kept: int = KEPT_PROBABILITIES,
    block: int = BLOCK_PROBABILITIES,
) -> torch.Tensor:
    """Context (B, H, T, d): products with what :func:`observed_probabilities` gives, to float rounding.

    Args:
        query_BHTd: queries.
        key_BGSd: keys; G divides H.
        value_BGSd: values.
        mask: additive, broadcastable to (B, 1, T, S); ``None``: every key.
        scale: factor on the scores.
        settings: kind of softmax.
        dropout: rate on the probabilities.
        kept: elements of (B, H, T, S) above which the queries are cut into blocks.
        block: elements of (B, H, block, S) of a block, which has one query at least.
    """
    query_BHTd = query_BHTd * scale
    folded = settings.softmax == "clipped" and settings.zeta == 1.0
    if folded:
        value_BGSd = value_BGSd * (1.0 - settings.clip_gamma)
    B, H, T, _ = query_BHTd.shape
    S = key_BGSd.shape[2]
    num_keys = _num_keys(mask, key_BGSd, settings)

    def of_rows(rows_BHtd: torch.Tensor, mask: torch.Tensor | None, num_keys: int | torch.Tensor) -> torch.Tensor:
        scores_BHtS = product_per_group(rows_BHtd, key_BGSd.transpose(-2, -1))
        if mask is not None:
            scores_BHtS = scores_BHtS + mask
        if folded:
            threshold = -settings.clip_gamma / (1.0 - settings.clip_gamma)
            p_BHtS = F.softshrink(torch.softmax(scores_BHtS, dim=-1), threshold)  # of p >= 0: relu(p - t)
        else:
            p_BHtS = attention_probabilities(scores_BHtS, settings, num_keys=num_keys)
        if dropout:
            p_BHtS = F.dropout(p_BHtS, p=dropout)
        return product_per_group(p_BHtS, value_BGSd)

    num_probabilities = B * H * T * S
    if num_probabilities <= kept:
        return of_rows(query_BHTd, mask, num_keys)
    rows = max(1, block // (B * H * S))
    compute = partial(checkpoint, of_rows, use_reentrant=False) if torch.is_grad_enabled() else of_rows
    parts = [slice(start, start + rows) for start in range(0, T, rows)]
    blocks = [compute(query_BHTd[:, :, part], _rows(mask, part), _rows(num_keys, part)) for part in parts]
    return torch.cat(blocks, dim=2)


def product_per_group(left_BHTi: torch.Tensor, right_BGij: torch.Tensor) -> torch.Tensor:
    """Matrix product per head, (B, H, T, j); each of the G right heads serves H / G left ones without being copied."""
    B, H, T, _ = left_BHTi.shape
    G = right_BGij.shape[1]
    if G == H:
        return torch.matmul(left_BHTi, right_BGij)
    product_BGtj = torch.matmul(left_BHTi.reshape(B, G, H // G * T, -1), right_BGij)
    return product_BGtj.reshape(B, H, T, -1)


def _num_keys(mask: torch.Tensor | None, key_BGSd: torch.Tensor, settings: AttentionSettings) -> int | torch.Tensor:
    """Keys that each row attends to, for ``clipped_per_row``."""
    if mask is None or settings.softmax != "clipped_per_row":
        return key_BGSd.shape[-2]
    return (mask > MASK_VALUE / 2).sum(dim=-1, keepdim=True)


def _rows(x: Any, part: slice) -> Any:
    """Rows of a mask or a count that has one entry per query; what is common to all queries as it is."""
    return x[:, :, part] if isinstance(x, torch.Tensor) and x.shape[2] > 1 else x
