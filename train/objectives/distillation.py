"""The objective of a retrofit: the student's last hidden states shall be the teacher's, without outliers on the way.

Shapes: B batch, T tokens, D features.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext

import torch
from torch import nn

from train.batches.text_batches import Batch
from train.loop.optimizer_update import Outcome
from train.objectives.agreement import mean_embeddings, real_tokens, relative_error
from train.objectives.penalty import PenaltySettings, largest_magnitude, outlier_penalty
from train.simulation.quantization_aware import QuantizationAware


class Distillation:
    """Maps a student and a batch to the loss of :func:`train.loop.training_loop.run_training`.

    The loss is the squared error of the last hidden states relative to the teacher's power, over real tokens, plus
    ``embedding_weight`` times the mean squared error of the cosine similarities between the rows of the batch, of which each is embedded
    as the mean of its hidden states; the penalty is :func:`train.objectives.penalty.outlier_penalty`.
    """

    def __init__(
        self,
        teacher: nn.Module,
        tensors: Mapping[str, torch.Tensor],
        *,
        penalty: PenaltySettings | None,
        embedding_weight: float,
        quantization: QuantizationAware | None = None,
        quantization_from: int = 0,
    ) -> None:
        """Bind the teacher.

        Args:
            teacher: float original, in evaluation mode, on the device of the batches.
            tensors: filled by :func:`train.observation.named_tensors.named_tensors` on each forward pass of the student.
            penalty: ``None`` only reports the largest activation.
            embedding_weight: weight of the similarity term; 0 leaves it out.
            quantization: makes the student compute on rounded weights and activations; ``None``: never.
            quantization_from: index of the first update that does.
        """
        self._quantization, self._quantization_from = quantization, quantization_from
        self._teacher, self._tensors = teacher, tensors
        self._penalty, self._embedding_weight = penalty, embedding_weight

    def __call__(self, model: nn.Module, batch: Batch, step: int) -> Outcome:
        """One forward pass of both; the student's keeps gradients."""
        with torch.no_grad():
            teacher_BTD = self._teacher(**batch).last_hidden_state.float()
        mask_BT = real_tokens(batch, teacher_BTD)
        rounding = self._quantization if step >= self._quantization_from else None
        with nullcontext() if rounding is None else rounding.rounding(batch.get("attention_mask")):
            student_BTD = model(**batch).last_hidden_state.float()
        loss = relative_error(student_BTD, teacher_BTD, mask_BT)
        parts = {"hidden": loss.detach()}
        if self._embedding_weight:
            mine_BB, theirs_BB = (
                embeddings_BD @ embeddings_BD.T
                for embeddings_BD in (mean_embeddings(student_BTD, mask_BT), mean_embeddings(teacher_BTD, mask_BT))
            )
            similarity = (mine_BB - theirs_BB).square().mean()
            parts["similarity"] = similarity.detach()
            loss = loss + self._embedding_weight * similarity
        penalty = None
        if self._penalty is not None:
            penalty = outlier_penalty(self._tensors, mask_BT, self._penalty)
            parts["penalty"] = penalty.detach()
        largest = largest_magnitude(self._tensors, mask_BT)
        return Outcome(loss=loss, penalty=penalty, parts=parts, largest_activation=largest)
