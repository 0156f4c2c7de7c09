"""The one attention function of quietformer, registered with transformers under the name ``quietformer``.

transformers hands query, key and value of any family to the function its config names (``AttentionInterface``), and
asks the mask function of the same name (``AttentionMaskInterface``) for the mask. What differs per checkpoint is
read from the attention module:

- ``quiet_settings``: :class:`train.attention.settings.AttentionSettings`;
- ``quiet_sites``: see ``train.attention.attention_sites``;
- ``prefix``: a submodule, keys and values that every query attends to before those of the sequence (``train.attention.stored_prefix``);
- ``gate``: a submodule, so its weights are saved as ``….attention.self.gate.*``. A forward pre-hook computes its
  product from the hidden state that enters the module and passes it on as the keyword ``quiet_gate``; families
  forward unknown keywords to the attention function.

Two paths. Vanilla and off-by-one softmax, gated or not, use ``scaled_dot_product_attention``: the off-by-one softmax
is the plain one with an extra key and value of zero. Clipped softmax is explicit (``train.attention.explicit_attention``), as is
everything while ``quiet_sites`` is set or attention weights are asked for.

A causal model without padding comes without a mask: the fused kernel is told so, the explicit path makes the mask.
Keys and values of a cache are among the S. Heads of keys and values may be fewer than those of queries (grouped-query
attention); each then serves H / G neighbouring queries.

Shapes: B batch, H heads of queries, G heads of keys and values, T queries, S keys, d features of a head, D hidden size.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface

from train.attention.attention_sites import SiteFunction, at_site
from train.attention.explicit_attention import clipped_context, observed_probabilities, product_per_group
from train.attention.gates import Gate
from train.attention.masks import MASK_VALUE, additive_mask, bounded_mask, causal_mask
from train.attention.settings import AttentionSettings
from train.attention.stored_prefix import prefix_of

__all__ = ["ATTENTION_NAME", "MASK_VALUE", "attach_attention", "bounded_mask", "quiet_attention", "register_attention"]

ATTENTION_NAME = "quietformer"


def register_attention() -> None:
    """Make the name ``quietformer`` known to transformers; repeating it does nothing."""
    AttentionInterface.register(ATTENTION_NAME, quiet_attention)
    AttentionMaskInterface.register(ATTENTION_NAME, bounded_mask)


def attach_attention(module: nn.Module, settings: AttentionSettings, gate: Gate | None) -> None:
    """Give an attention module what :func:`quiet_attention` reads, in place.

    Args:
        module: attention module of a family; its first positional argument is the hidden state (B, T, D).
        settings: kind of softmax.
        gate: becomes the submodule ``gate``; ``None`` for an ungated layer.
    """
    module.quiet_settings = settings  # type: ignore[assignment]
    module.quiet_sites = None  # type: ignore[assignment]
    if gate is not None:
        module.gate = gate
        module.register_forward_pre_hook(_compute_gate, with_kwargs=True)


def _compute_gate(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    hidden_BTD = args[0] if args else kwargs["hidden_states"]
    assert isinstance(module.gate, nn.Module)
    return args, {**kwargs, "quiet_gate": module.gate(hidden_BTD, module.quiet_sites)}


def quiet_attention(
    module: nn.Module,
    query_BHTd: torch.Tensor,
    key_BGSd: torch.Tensor,
    value_BGSd: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    quiet_gate: torch.Tensor | None = None,
    output_attentions: bool = False,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attention as the module's ``quiet_settings`` say.

    Args:
        module: carries ``quiet_settings`` and ``quiet_sites``, ``prefix`` where there is one, and ``is_causal`` in a causal model.
        query_BHTd: queries.
        key_BGSd: keys, cached ones first; G divides H.
        value_BGSd: values.
        attention_mask: additive and bounded, or boolean (true = attend), broadcastable to (B, 1, T, S); ``None``: all keys,
            in a causal model those up to the query's position.
        scaling: factor on the scores, by default ``d ** -0.5``.
        dropout: rate on the probabilities, 0 outside training.
        quiet_gate: (B, T, H) factor on each head's context.
        output_attentions: return the probabilities too.
        **kwargs: other keywords of the families, unread.

    Returns:
        Context (B, T, H, d), and the probabilities (B, H, T, S) where the explicit path made them.
    """
    settings, sites = module.quiet_settings, cast("SiteFunction | None", module.quiet_sites)
    assert isinstance(settings, AttentionSettings)
    scale = query_BHTd.shape[-1] ** -0.5 if scaling is None else scaling
    mask, num_queries = attention_mask, query_BHTd.shape[2]
    is_causal = mask is None and num_queries > 1 and bool(getattr(module, "is_causal", False))
    if is_causal:  # a cache of fixed size has keys beyond the last query, which hold nothing yet
        key_BGSd, value_BGSd = key_BGSd[:, :, :num_queries], value_BGSd[:, :, :num_queries]
    if mask is not None and mask.dtype == torch.bool:
        mask = additive_mask(mask, query_BHTd.dtype)
    value_BGSd = at_site(sites, "values", value_BGSd)
    prefix = prefix_of(module)
    if prefix is not None:
        key_BGSd, value_BGSd = prefix.before_keys(key_BGSd), prefix.before_values(value_BGSd)
        mask = None if mask is None else prefix.before_mask(mask)
    probabilities_BHTS = None
    if sites is None and not output_attentions and settings.softmax in ("vanilla", "off_by_one"):
        context_BHTd = _fused_context(
            query_BHTd,
            key_BGSd,
            value_BGSd,
            mask,
            is_causal=is_causal,
            num_stored=settings.prefix,
            extra_key=settings.softmax == "off_by_one",
            dropout=dropout,
            scale=scale,
        )
    else:
        if is_causal:
            mask = causal_mask(num_queries, dtype=query_BHTd.dtype, device=query_BHTd.device)
            mask = mask if prefix is None else prefix.before_mask(mask)
        if sites is None and not output_attentions:
            rate = dropout if module.training else 0.0
            context_BHTd = clipped_context(
                query_BHTd, key_BGSd, value_BGSd, mask, scale=scale, settings=settings, dropout=rate
            )
        else:
            probabilities_BHTS = observed_probabilities(
                query_BHTd, key_BGSd, mask, scale=scale, settings=settings, sites=sites
            )
            dropped_BHTS = F.dropout(probabilities_BHTS, p=dropout, training=module.training)
            context_BHTd = product_per_group(dropped_BHTS, value_BGSd)
    context_BTHd = context_BHTd.transpose(1, 2)
    if quiet_gate is not None:
        context_BTHd = at_site(sites, "values_mixed", context_BTHd) * quiet_gate[..., None]
    return at_site(sites, "context", context_BTHd).contiguous(), probabilities_BHTS


def _fused_context(
    query_BHTd: torch.Tensor,
    key_BGSd: torch.Tensor,
    value_BGSd: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    is_causal: bool,
    num_stored: int,
    extra_key: bool,
    dropout: float,
    scale: float,
) -> torch.Tensor:
    """Context (B, H, T, d) of the plain softmax, or of that with one more key and value of zero in every row.

    The kernel's own causal pattern starts at the first key. So the extra key comes first there, and it and the stored
    keys need queries of their own before the others, whose results are dropped.
    """
    ahead = num_stored + extra_key if is_causal else 0
    if extra_key:
        before, after = (1, 0) if is_causal else (0, 1)
        key_BGSd, value_BGSd = (F.pad(x_BGSd, (0, 0, before, after)) for x_BGSd in (key_BGSd, value_BGSd))
        mask = None if mask is None else F.pad(mask, (before, after))
    query_BHTd = F.pad(query_BHTd, (0, 0, ahead, 0)) if ahead else query_BHTd
    grouped = key_BGSd.shape[1] != query_BHTd.shape[1]
    if grouped and mask is not None and query_BHTd.is_cuda:  # there the fused kernels take groups without a mask only
        repeats = query_BHTd.shape[1] // key_BGSd.shape[1]
        key_BGSd, value_BGSd = (x_BGSd.repeat_interleave(repeats, dim=1) for x_BGSd in (key_BGSd, value_BGSd))
        grouped = False
    context_BHTd = F.scaled_dot_product_attention(
        query_BHTd,
        key_BGSd,
        value_BGSd,
        attn_mask=mask,
        dropout_p=dropout,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=grouped,
    )
    return context_BHTd[:, :, ahead:] if ahead else context_BHTd
