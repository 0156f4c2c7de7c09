"""Causal language modelling: predict each token of a window from those before it.

Shapes: B rows, T tokens, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

from train.batches.text_batches import Batch
from train.objectives.learning_task import TaskFigures, TaskLoss


class CausalLm:
    """The task of a decoder with a language-model head; rows have no padding."""

    metric = "perplexity"

    def loss(self, model: nn.Module, batch: Batch) -> TaskLoss:
        """Mean negative log-likelihood (nats) of the second to the last token of each row."""
        return TaskLoss(loss=_losses(model, batch["input_ids"], reduction="mean"))

    def figures(self, model: nn.Module, batches: Sequence[Batch]) -> TaskFigures:
        """``loss`` and ``perplexity`` over all predicted tokens."""
        device = next(model.parameters()).device
        total, count = 0.0, 0
        for batch in batches:
            ids_BT = batch["input_ids"].to(device)
            total += float(_losses(model, ids_BT, reduction="sum"))
            count += ids_BT[:, 1:].numel()
        loss = total / count
        return TaskFigures(score=-loss, figures={"loss": loss, "perplexity": math.exp(min(loss, 700.0))})

    def inputs(self, batch: Batch) -> Batch:
        """The rows."""
        return {"input_ids": batch["input_ids"]}


def _losses(model: nn.Module, ids_BT: torch.Tensor, *, reduction: str) -> torch.Tensor:
    logits_BTV = model(input_ids=ids_BT, use_cache=False).logits
    return F.cross_entropy(logits_BTV[:, :-1].flatten(0, 1).float(), ids_BT[:, 1:].flatten(), reduction=reduction)
