"""Masked language modelling: predict the hidden tokens of :mod:`train.batches.masking`.

The head reads the hidden states of the predicted positions only. It is most of a small model's work (192 × 30,522
multiplications per token, against 1.8 million in four layers of width 192), and 85 % of its results would be thrown away.

Shapes: B rows, T tokens, M predicted tokens of a row, D features, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from train.batches.masking import IGNORED
from train.batches.text_batches import Batch
from train.objectives.learning_task import TaskFigures, TaskLoss


class MaskedLm:
    """The task of a model with a masked-language-model head."""

    metric = "perplexity"

    def __init__(self, model: PreTrainedModel) -> None:
        """Bind the bare model, whose trunk and head are told apart by ``base_model``."""
        self._trunk = model.base_model

    def loss(self, model: nn.Module, batch: Batch) -> TaskLoss:
        """Mean negative log-likelihood (nats) of the predicted tokens."""
        logits_BMV, labels_BM = self._predict(model, batch)
        loss = F.cross_entropy(logits_BMV.flatten(0, 1), labels_BM.flatten(), ignore_index=IGNORED)
        return TaskLoss(loss=loss)

    def figures(self, model: nn.Module, batches: Sequence[Batch]) -> TaskFigures:
        """``loss``, ``perplexity`` and ``accuracy`` over all predicted tokens."""
        device = next(model.parameters()).device
        total, correct, count = 0.0, 0, 0
        for batch in batches:
            logits_BMV, labels_BM = self._predict(model, {name: x.to(device) for name, x in batch.items()})
            valid_BM = labels_BM != IGNORED
            logits_NV, labels_N = logits_BMV[valid_BM], labels_BM[valid_BM]
            total += float(F.cross_entropy(logits_NV, labels_N, reduction="sum"))
            correct += int((logits_NV.argmax(-1) == labels_N).sum())
            count += len(labels_N)
        loss = total / count
        return TaskFigures(
            score=-loss, figures={"loss": loss, "perplexity": math.exp(min(loss, 700.0)), "accuracy": correct / count}
        )

    def inputs(self, batch: Batch) -> Batch:
        """The masked rows."""
        return {"input_ids": batch["input_ids"]}

    def _predict(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        with head_reads(self._trunk, batch["positions"]):
            logits_BMV = model(**self.inputs(batch)).logits.float()
        return logits_BMV, batch["labels"]


@contextmanager
def head_reads(trunk: nn.Module, positions_BM: torch.Tensor) -> Iterator[None]:
    """Pass only some positions of the trunk's last hidden states on to the head, for the length of a ``with`` block.

    Args:
        trunk: ``base_model``, which returns a ``last_hidden_state`` (B, T, D).
        positions_BM: positions of each row, int64.
    """

    def pick(_module: nn.Module, _args: tuple[Any, ...], output: Any) -> Any:
        hidden_BTD = output.last_hidden_state
        index_BMD = positions_BM[..., None].expand(-1, -1, hidden_BTD.shape[-1])
        output.last_hidden_state = hidden_BTD.gather(1, index_BMD)
        return output

    handle = trunk.register_forward_hook(pick)
    try:
        yield
    finally:
        handle.remove()
