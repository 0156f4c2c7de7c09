"""Another objective of a retrofit: the student's head shall give every token, or image, the distribution that the teacher's gives.

It asks nothing of hidden states, so they may be those of another basis (:mod:`train.weights.rotation`) or be led elsewhere by a prefix.

Shapes: B rows, T tokens, V classes or vocabulary, N rows of logits that count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext

import torch
from torch import nn
from torch.nn import functional as F

from train.batches.text_batches import Batch
from train.loop.optimizer_update import Outcome
from train.objectives.penalty import PenaltySettings, largest_magnitude, outlier_penalty
from train.simulation.quantization_aware import QuantizationAware


def logits_that_count(logits: torch.Tensor, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Logits of real tokens (B, T, V), or of images (B, V), as float32 (N, V)."""
    mask_BT = batch.get("attention_mask")
    counted = logits.flatten(0, -2) if mask_BT is None else logits[mask_BT.bool()]
    return counted.float()


def divergence(student_NV: torch.Tensor, teacher_NV: torch.Tensor) -> torch.Tensor:
    """Mean Kullback-Leibler divergence in nats, teacher from student: scalar, 0 for equal distributions."""
    log_student_NV, log_teacher_NV = F.log_softmax(student_NV, dim=-1), F.log_softmax(teacher_NV, dim=-1)
    return F.kl_div(log_student_NV, log_teacher_NV, reduction="batchmean", log_target=True)


class LogitDistillation:
    """Maps a student and a batch to the loss of :func:`train.loop.training_loop.run_training`: :func:`divergence`, and the penalty."""

    def __init__(
        self,
        teacher: nn.Module,
        tensors: Mapping[str, torch.Tensor],
        *,
        penalty: PenaltySettings | None,
        quantization: QuantizationAware | None = None,
        quantization_from: int = 0,
    ) -> None:
        """Bind the teacher; arguments as of :class:`train.objectives.distillation.Distillation`, teacher and student with their heads."""
        self._teacher, self._tensors, self._penalty = teacher, tensors, penalty
        self._quantization, self._quantization_from = quantization, quantization_from

    def __call__(self, model: nn.Module, batch: Batch, step: int) -> Outcome:
        """One forward pass of both; the student's keeps gradients."""
        mask_BT = batch.get("attention_mask")
        with torch.no_grad():
            teacher_NV = logits_that_count(self._teacher(**batch).logits, batch)
        rounding = self._quantization if step >= self._quantization_from else None
        with nullcontext() if rounding is None else rounding.rounding(mask_BT):
            student_NV = logits_that_count(model(**batch).logits, batch)
        loss = divergence(student_NV, teacher_NV)
        parts = {"divergence": loss.detach()}
        penalty = None
        if self._penalty is not None:
            penalty = outlier_penalty(self._tensors, mask_BT, self._penalty)
            parts["penalty"] = penalty.detach()
        largest = largest_magnitude(self._tensors, mask_BT)
        return Outcome(loss=loss, penalty=penalty, parts=parts, largest_activation=largest)


class HeldOutLogits:
    """Held-out rows, judged by how far a model's distributions are from the float original's.

    The original runs again each time, since logits over a vocabulary are too large to be kept.
    """

    def __init__(self, teacher: nn.Module, batches: Sequence[Batch], *, device: torch.device) -> None:
        """Bind them; arguments as of :class:`train.objectives.agreement.HeldOutRows`, the teacher with its head."""
        self._teacher = teacher
        self._batches = [{name: tensor.to(device) for name, tensor in batch.items()} for batch in batches]

    @torch.inference_mode()
    def figures(self, model: nn.Module, *, prefix: str) -> dict[str, float]:
        """Compare ``model``, as it is now, with the original.

        Returns:
            ``PREFIX_divergence`` (:func:`divergence` over all rows) and ``PREFIX_agreement``, the share of tokens or images for which
            both find the same most likely class.
        """
        total, same, count = 0.0, 0, 0
        for batch in self._batches:
            theirs_NV = logits_that_count(self._teacher(**batch).logits, batch)
            mine_NV = logits_that_count(model(**batch).logits, batch)
            total += float(divergence(mine_NV, theirs_NV)) * len(theirs_NV)
            same += int((mine_NV.argmax(dim=-1) == theirs_NV.argmax(dim=-1)).sum())
            count += len(theirs_NV)
        return {f"{prefix}_divergence": total / count, f"{prefix}_agreement": same / count}
