"""Keys and values that stand before every sequence: a place for the attention that wants to do nothing.

A pretrained decoder turns the first token it reads, whatever it is, into a sink: a hidden state of enormous norm whose key
attracts the heads that have nothing to say. A static grid per tensor that has to hold such numbers has no steps left for the other
tokens. Here the sink is data instead of a token: keys and values stored with the checkpoint (:mod:`train.conversion.prefix_tokens` makes them),
which real tokens attend to, so none of them has to become one.

Rotary positions make it exact: only differences of positions enter the scores, so the prefix stands at positions
-P .. -1 and the tokens keep theirs: 0 is the first real one, wherever padding puts it (:func:`number_from_first_token`). A prefix starts at zero, where it is off-by-one softmax with P instead of 1, and can be
learned like any parameter.

Shapes: B batch, S keys, P stored keys, G heads of keys and values, d features of a head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

PREFIX_NAME = "prefix"
"""Submodule of an attention module, so the weights are saved as ``….self_attn.prefix.key`` and ``….prefix.value``."""


class Prefix(nn.Module):
    """Keys and values before those of the sequence, the same for every row."""

    def __init__(self, *, length: int, num_heads: int, head_size: int) -> None:
        """Start at zero.

        Args:
            length: P.
            num_heads: G.
            head_size: d.
        """
        super().__init__()
        self.key = nn.Parameter(torch.zeros(num_heads, length, head_size))
        self.value = nn.Parameter(torch.zeros(num_heads, length, head_size))

    def before_keys(self, key_BGSd: torch.Tensor) -> torch.Tensor:
        """Stored keys and the sequence's, (B, G, P + S, d)."""
        return _before(self.key, key_BGSd)

    def before_values(self, value_BGSd: torch.Tensor) -> torch.Tensor:
        """Stored values and the sequence's, (B, G, P + S, d)."""
        return _before(self.value, value_BGSd)

    def before_mask(self, mask: torch.Tensor) -> torch.Tensor:
        """Additive mask (..., P + S) of one (..., S): every query attends to the stored keys."""
        return F.pad(mask, (self.key.shape[1], 0))


def number_from_first_token(base_model: nn.Module) -> None:
    """Let positions start at the first real token of every row, in place; repeating it does nothing.

    Rows padded on the left would stand away from their prefix otherwise. Positions that a caller gives are used.
    """
    if _number_tokens not in base_model._forward_pre_hooks.values():
        base_model.register_forward_pre_hook(_number_tokens, with_kwargs=True)


def _number_tokens(_model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    mask_BS, given = kwargs.get("attention_mask"), kwargs.get("position_ids")
    if given is not None or not isinstance(mask_BS, torch.Tensor) or mask_BS.ndim != 2:
        return args, kwargs
    tokens = next(x for x in (*args, kwargs.get("input_ids"), kwargs.get("inputs_embeds")) if x is not None)
    positions_BS = (mask_BS.long().cumsum(dim=-1) - 1).clamp(min=0)
    return args, {**kwargs, "position_ids": positions_BS[:, -tokens.shape[1] :]}


def prefix_of(attention: nn.Module) -> Prefix | None:
    """The prefix of an attention module; ``None`` where it has none."""
    prefix = getattr(attention, PREFIX_NAME, None)
    assert prefix is None or isinstance(prefix, Prefix)
    return prefix


def _before(stored_GPd: torch.Tensor, x_BGSd: torch.Tensor) -> torch.Tensor:
    return torch.cat([stored_GPd.to(x_BGSd.dtype).expand(x_BGSd.shape[0], -1, -1, -1), x_BGSd], dim=2)
