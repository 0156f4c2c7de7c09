"""Masks of the attention function: additive, bounded, and left out where the kernel can do without.

Shapes: B batch, T queries, S keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers.masking_utils import bidirectional_mask_function, sdpa_mask
from transformers.utils.import_utils import is_tracing

MASK_VALUE = -10_000.0
"""Added to the scores of masked keys: finite in float16, and so far that their probability is exactly 0 in float32."""


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
    allow_is_causal_skip: bool = False,
    **kwargs: Any,
) -> torch.Tensor | None:
    """Additive mask with 0 for keys to attend to and ``MASK_VALUE`` for the others: never infinite.

    Called by transformers with what the family asks for. Padding of an encoder gives (B, 1, 1, S); other patterns
    give (B, 1, T, S), causal ones with the cached keys among the S. ``None`` is given only where nothing is traced and no
    key is padding: it stands for every key in an encoder, and in a causal model for the keys up to the query's own
    position (for every key where there is one query, the last).
    """
    if mask_function is bidirectional_mask_function and attention_mask is not None:
        assert attention_mask.ndim == 2
        assert kv_offset == 0
        if allow_is_bidirectional_skip and not is_tracing(attention_mask) and bool(attention_mask.all()):
            return None
        return (~attention_mask[:, None, None, :]).to(dtype) * MASK_VALUE
    keep = sdpa_mask(
        batch_size,
        q_length,
        kv_length,
        mask_function=mask_function,
        attention_mask=attention_mask,
        kv_offset=kv_offset,
        allow_is_causal_skip=allow_is_causal_skip,
        allow_is_bidirectional_skip=allow_is_bidirectional_skip,
        **kwargs,
    )
    return None if keep is None else additive_mask(keep, dtype)


def additive_mask(keep: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """0 where ``keep`` is true, ``MASK_VALUE`` elsewhere."""
    return (~keep).to(dtype) * MASK_VALUE


def causal_mask(length: int, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """(T, T) additive mask of a causal model without padding: query i attends to keys 0 to i."""
    return additive_mask(torch.ones(length, length, dtype=torch.bool, device=device).tril(), dtype)
