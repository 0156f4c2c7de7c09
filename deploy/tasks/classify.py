"""Text classification: the share of texts whose class gets the largest logit.

Shapes: N texts, B rows of a batch, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from deploy.data.text_data import LabelledText
from deploy.tasks.length_batches import Encoder, LengthBatch, length_batches
from deploy.tasks.task import Infer, TaskResult

LOGITS = "logits"
"""Name of the output that a classification graph has."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ClassifyTask:
    """Accuracy."""

    batches: tuple[LengthBatch, ...]
    labels: np.ndarray
    """Class of each text, int64 (N,)."""
    name: str = "classify"
    metric: str = "accuracy"
    higher_is_better: bool = True

    @property
    def num_examples(self) -> int:
        """Number of texts."""
        return len(self.labels)

    def evaluate(self, infer: Infer) -> TaskResult:
        """Accuracy of a model; ``loss`` (mean cross-entropy, nats) as a detail. Of equal logits the first class counts.

        Raises:
            ValueError: the graph has no logits, they are not finite, or a text has a class that they do not have.
        """
        correct, loss = 0, 0.0
        for batch in self.batches:
            outputs = infer(batch.feeds)
            if LOGITS not in outputs:
                raise ValueError(f"the graph has no output '{LOGITS}'; it has {', '.join(sorted(outputs))}")
            logits_BK = outputs[LOGITS].astype(np.float64)
            labels_B = self.labels[batch.rows]
            if not np.isfinite(logits_BK).all():
                bad = int(np.flatnonzero(~np.isfinite(logits_BK).all(axis=1))[0])
                raise ValueError(f"logits of text {batch.rows[bad]} are not finite")
            if labels_B.max() >= logits_BK.shape[1]:
                raise ValueError(f"a text is of class {labels_B.max()}; the model has {logits_BK.shape[1]} classes")
            correct += int(np.count_nonzero(logits_BK.argmax(axis=1) == labels_B))
            loss += float((logsumexp(logits_BK, axis=1) - logits_BK[np.arange(len(labels_B)), labels_B]).sum())
        return TaskResult(score=correct / self.num_examples, details={"loss": loss / self.num_examples})


def classify_task(
    texts: Sequence[LabelledText],
    encoder: Encoder,
    *,
    input_names: Sequence[str],
    batch_size: int = 32,
    length: int | None = None,
) -> ClassifyTask:
    """Encode the texts once, so that every candidate sees the same batches.

    Raises:
        ValueError: no text.
    """
    rows = encoder.encode([text.text for text in texts])
    batches = length_batches(encoder, rows, input_names=input_names, batch_size=batch_size, length=length)
    return ClassifyTask(batches=batches, labels=np.array([text.label for text in texts], dtype=np.int64))
