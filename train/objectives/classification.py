"""Classification of images or texts: cross-entropy with label smoothing, also on the mixed labels of :mod:`train.objectives.image_mixing`.

Shapes: B examples, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.nn import functional as F

from train.batches.text_batches import Batch
from train.objectives.learning_task import TaskFigures, TaskLoss

LABELS, OTHER_LABELS, SHARE = "labels", "other_labels", "label_share"
"""Classes (B,), and for mixed examples the second class (B,) and the first one's share in (0, 1] (B,)."""


class Classification:
    """The task of a model with a classification head; whatever a batch holds beside labels goes into the model."""

    metric = "top1"

    def __init__(self, *, label_smoothing: float = 0.0) -> None:
        """Bind the smoothing.

        Args:
            label_smoothing: share of the target that is spread evenly over all classes, in [0, 1); of the training loss only.

        Raises:
            ValueError: it is outside that range.
        """
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing is {label_smoothing}; expected at least 0 and below 1")
        self._label_smoothing = label_smoothing

    def loss(self, model: nn.Module, batch: Batch) -> TaskLoss:
        """Mean cross-entropy (nats); of a mixed example the share-weighted one of its two classes."""
        logits_BK = model(**self.inputs(batch)).logits.float()
        losses_B = F.cross_entropy(logits_BK, batch[LABELS], reduction="none", label_smoothing=self._label_smoothing)
        if OTHER_LABELS in batch:
            others_B = F.cross_entropy(
                logits_BK, batch[OTHER_LABELS], reduction="none", label_smoothing=self._label_smoothing
            )
            losses_B = batch[SHARE] * losses_B + (1 - batch[SHARE]) * others_B
        return TaskLoss(loss=losses_B.mean())

    def figures(self, model: nn.Module, batches: Sequence[Batch]) -> TaskFigures:
        """``loss`` and ``top1`` (share of examples whose largest logit is their class's)."""
        device = next(model.parameters()).device
        total, correct, count = 0.0, 0, 0
        for batch in batches:
            on_device = {name: x.to(device) for name, x in batch.items()}
            logits_BK = model(**self.inputs(on_device)).logits.float()
            total += float(F.cross_entropy(logits_BK, on_device[LABELS], reduction="sum"))
            correct += int((logits_BK.argmax(-1) == on_device[LABELS]).sum())
            count += len(logits_BK)
        top1 = correct / count
        return TaskFigures(score=top1, figures={"loss": total / count, "top1": top1})

    def inputs(self, batch: Batch) -> Batch:
        """Everything but labels."""
        return {name: x for name, x in batch.items() if name not in (LABELS, OTHER_LABELS, SHARE)}
