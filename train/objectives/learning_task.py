"""What a model learns from labels: the loss of a batch, and how well it does on batches held out.

One class per task (:mod:`train.objectives.masked_lm` and its siblings); :class:`Learning` makes a training objective of any of them, with the outlier
penalty where it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import nn

from train.batches.text_batches import Batch
from train.loop.optimizer_update import Outcome
from train.objectives.penalty import PenaltySettings, largest_magnitude, outlier_penalty


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskLoss:
    """Loss of one batch."""

    loss: torch.Tensor
    """Minimised; float32 scalar with gradient history."""
    parts: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Further figures of the batch, detached scalars; the same names for every batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskFigures:
    """How a model does on held-out batches."""

    score: float
    """Decides which state is the best; higher is better."""
    figures: Mapping[str, float]
    """By name: ``loss``, and ``perplexity`` or ``top1`` or whatever measures the task."""


class LearningTask(Protocol):
    """A task with labels."""

    metric: str
    """Name of the figure that people quote."""

    def loss(self, model: nn.Module, batch: Batch) -> TaskLoss:
        """Loss of a batch; ``model`` may be wrapped for several processes."""

    def figures(self, model: nn.Module, batches: Sequence[Batch]) -> TaskFigures:
        """Figures over batches, without gradients."""

    def inputs(self, batch: Batch) -> Batch:
        """What the model itself takes of a batch."""


class Learning:
    """The objective of :func:`train.loop.training_loop.run_training` for a task, with an outlier penalty on named tensors."""

    def __init__(
        self, task: LearningTask, tensors: Mapping[str, torch.Tensor], *, penalty: PenaltySettings | None
    ) -> None:
        """Bind the task.

        Args:
            task: what is learnt.
            tensors: filled by :func:`train.observation.named_tensors.named_tensors` on each forward pass; with none of them there is neither a
                penalty nor a largest activation.
            penalty: ``None`` for none.
        """
        self._task, self._tensors, self._penalty = task, tensors, penalty

    def __call__(self, model: nn.Module, batch: Batch, step: int) -> Outcome:
        """One forward pass with gradients."""
        result = self._task.loss(model, batch)
        parts = dict(result.parts)
        mask_BT = batch.get("attention_mask")
        penalty = None
        if self._penalty is not None:
            penalty = outlier_penalty(self._tensors, mask_BT, self._penalty)
            parts["penalty"] = penalty.detach()
        largest = largest_magnitude(self._tensors, mask_BT) if self._tensors else None
        return Outcome(loss=result.loss, penalty=penalty, parts=parts, largest_activation=largest)
