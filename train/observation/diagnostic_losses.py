"""Losses whose gradients tell where a model pulls: of its own task where it has one, of a fixed random reading of its output otherwise.

Each is the sum over the rows of a batch of losses that do not depend on the other rows (``train.observation.softmax_gradient``).

Shapes: B batch, T tokens, D features of the output, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import torch
from torch.nn import functional as F
from transformers import PreTrainedModel

_IGNORED = -100


def projection_loss(model: PreTrainedModel, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """``sum_t <r_t, y_t>`` of the model's output ``y`` with fixed standard normal ``r``, for a model without a task.

    The expectation of the squared gradient over ``r`` is the squared Frobenius norm of the output's Jacobian: what moves the
    output at all. The output is the last hidden state (B, T, D), or the logits (B, T, V) or (B, V) of a model with a head.
    """
    outputs = model(**batch)
    y = outputs.logits if "logits" in outputs else outputs.last_hidden_state
    y_BTD = y[:, None] if y.ndim == 2 else y
    mask_BT = batch.get("attention_mask")
    if mask_BT is not None and mask_BT.shape == y_BTD.shape[:2]:
        y_BTD = y_BTD * mask_BT[..., None]
    directions_TD = torch.stack([_direction(place, y_BTD.shape[2]) for place in range(y_BTD.shape[1])])
    return torch.sum(y_BTD * directions_TD.to(y_BTD))


def next_token_loss(model: PreTrainedModel, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Cross-entropy of each next token in nats, averaged over a row's tokens: what a causal language model was trained on."""
    logits_BTV = model(**batch).logits[:, :-1].float()
    target_BT = batch["input_ids"][:, 1:]
    mask_BT = batch.get("attention_mask")
    if mask_BT is not None:
        seen_BT = (mask_BT[:, 1:] * mask_BT[:, :-1]).bool()
        target_BT = target_BT.masked_fill(~seen_BT, _IGNORED)
    loss_BT = F.cross_entropy(logits_BTV.transpose(1, 2), target_BT, ignore_index=_IGNORED, reduction="none")
    count_B = (target_BT != _IGNORED).sum(dim=1).clamp(min=1)
    return (loss_BT.sum(dim=1) / count_B).sum()


@lru_cache(maxsize=4096)
def _direction(position: int, size: int) -> torch.Tensor:
    """(D,) standard normal, a function of the position alone, so that batches of any shape read the same."""
    return torch.from_numpy(np.random.default_rng((0, position)).standard_normal(size))
