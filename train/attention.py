"""The one attention function of quietformer, registered with transformers under the name ``quietformer``.

transformers hands query, key and value of any family to the function its config names (``AttentionInterface``), and
asks the mask function of the same name (``AttentionMaskInterface``) for the mask. What differs per checkpoint is
read from the attention module:

- ``quiet_settings``: :class:`train.settings.AttentionSettings`;
- ``quiet_sites``: see ``train.attention_sites``;
- ``gate``: a submodule, so its weights are saved as ``….attention.self.gate.*``. A forward pre-hook computes its
  product from the hidden state that enters the module and passes it on as the keyword ``quiet_gate``; families
  forward unknown keywords to the attention function.

Two paths. Vanilla and off-by-one softmax, gated or not, use ``scaled_dot_product_attention``: the off-by-one softmax
is the plain one with an extra key and value of zero. Clipped softmax is explicit (MatMul, softmax, MatMul), as is
everything while ``quiet_sites`` is set or attention weights are asked for.

Shapes: B batch, H heads, T queries, S keys, d features of a head, D = H * d.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import bidirectional_mask_function, sdpa_mask
from transformers.utils.import_utils import is_tracing

from train.attention_sites import SiteFunction, at_site
from train.gates import Gate
from train.settings import AttentionSettings
from train.softmax import attention_probabilities

ATTENTION_NAME = "quietformer"

MASK_VALUE = -10_000.0
"""Added to the scores of masked keys: finite in float16, and so far that their probability is exactly 0 in float32."""


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
    assert isinstance(module.gate, Gate)
    return args, {**kwargs, "quiet_gate": module.gate(hidden_BTD, module.quiet_sites)}


def bounded_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    *,
    mask_function: Callable[..., Any],
    attention_mask: torch.Tensor | None = None,
    kv_offset: int = 0,
    dtype: torch.dtype = torch.float32,
    allow_is_bidirectional_skip: bool = False,
    **kwargs: Any,
) -> torch.Tensor | None:
    """Additive mask with 0 for keys to attend to and ``MASK_VALUE`` for the others: never infinite.

    Called by transformers with what the family asks for. Padding of an encoder gives (B, 1, 1, S); other patterns
    give (B, 1, T, S). ``None`` stands for "every key" and is given only where nothing is masked and nothing is traced.
    """
    if mask_function is bidirectional_mask_function and attention_mask is not None:
        assert attention_mask.ndim == 2
        assert kv_offset == 0
        if allow_is_bidirectional_skip and not is_tracing(attention_mask) and bool(attention_mask.all()):
            return None
        return (~attention_mask[:, None, None, :]).to(dtype) * MASK_VALUE
    kwargs.pop("allow_is_causal_skip", None)
    keep = sdpa_mask(
        batch_size,
        q_length,
        kv_length,
        mask_function=mask_function,
        attention_mask=attention_mask,
        kv_offset=kv_offset,
        allow_is_causal_skip=False,
        allow_is_bidirectional_skip=allow_is_bidirectional_skip,
        **kwargs,
    )
    return None if keep is None else (~keep).to(dtype) * MASK_VALUE


def quiet_attention(
    module: nn.Module,
    query_BHTd: torch.Tensor,
    key_BHSd: torch.Tensor,
    value_BHSd: torch.Tensor,
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
        module: carries ``quiet_settings`` and ``quiet_sites``.
        query_BHTd: queries.
        key_BHSd: keys; as many heads as queries, or a divisor of that: each then serves as many neighbouring queries.
        value_BHSd: values.
        attention_mask: additive and bounded, or boolean (true = attend), broadcastable to (B, 1, T, S); ``None``: all.
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
    mask = attention_mask
    if mask is not None and mask.dtype == torch.bool:
        mask = (~mask).to(query_BHTd.dtype) * MASK_VALUE
    value_BHSd = at_site(sites, "values", value_BHSd)
    probabilities_BHTS = None
    grouped = key_BHSd.shape[1] != query_BHTd.shape[1]
    if sites is None and not output_attentions and settings.softmax in ("vanilla", "off_by_one"):
        if settings.softmax == "off_by_one":
            key_BHSd, value_BHSd = F.pad(key_BHSd, (0, 0, 0, 1)), F.pad(value_BHSd, (0, 0, 0, 1))
            mask = None if mask is None else F.pad(mask, (0, 1))
        context_BHTd = F.scaled_dot_product_attention(
            query_BHTd, key_BHSd, value_BHSd, attn_mask=mask, dropout_p=dropout, scale=scale, enable_gqa=grouped
        )
    else:
        probabilities_BHTS = _probabilities(query_BHTd, key_BHSd, mask, scale=scale, settings=settings, sites=sites)
        dropped_BHTS = F.dropout(probabilities_BHTS, p=dropout, training=module.training)
        context_BHTd = _per_group(dropped_BHTS, value_BHSd)
    context_BTHd = context_BHTd.transpose(1, 2)
    if quiet_gate is not None:
        context_BTHd = at_site(sites, "values_mixed", context_BTHd) * quiet_gate[..., None]
    return at_site(sites, "context", context_BTHd).contiguous(), probabilities_BHTS


def _probabilities(
    query_BHTd: torch.Tensor,
    key_BHSd: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    scale: float,
    settings: AttentionSettings,
    sites: SiteFunction | None,
) -> torch.Tensor:
    scores_BHTS = _per_group(query_BHTd, key_BHSd.transpose(-2, -1))
    if scale != 1.0:  # an exporter that folded the scale into the query projection gets no multiplication by 1
        scores_BHTS = scores_BHTS * scale
    scores_BHTS = at_site(sites, "scores", scores_BHTS)
    num_keys: int | torch.Tensor = key_BHSd.shape[-2]
    if mask is not None:
        mask = at_site(sites, "mask", mask)
        scores_BHTS = scores_BHTS + mask
        if settings.softmax == "clipped_per_row":
            num_keys = (mask > MASK_VALUE / 2).sum(dim=-1, keepdim=True)
    return at_site(sites, "probabilities", attention_probabilities(scores_BHTS, settings, num_keys=num_keys))


def _per_group(left_BHTi: torch.Tensor, right_BGij: torch.Tensor) -> torch.Tensor:
    """Matrix product per head, (B, H, T, j), where each of the G right heads serves H / G left ones without being copied."""
    B, H, T, _ = left_BHTi.shape
    G = right_BGij.shape[1]
    if G == H:
        return torch.matmul(left_BHTi, right_BGij)
    product = torch.matmul(left_BHTi.reshape(B, G, H // G * T, -1), right_BGij)
    return product.reshape(B, H, T, -1)
