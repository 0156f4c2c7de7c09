"""Texts with classes, and pairs of texts with scores, as shuffled padded batches addressed by step.

Shapes: B rows of a batch, P pairs of a batch, T tokens of the longest row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from train.batches.text_batches import Batch, TextBatches, TokenRow, pad_rows, rows_sha256
from train.objectives.classification import LABELS
from train.objectives.sentence_similarity import SCORES


class LabelledRows:
    """Tokenised texts with their classes; batches as :class:`train.batches.text_batches.TextBatches` makes them.

    Raises:
        ValueError: as ``TextBatches``, or a row without a label.
    """

    def __init__(
        self, rows: Sequence[TokenRow], labels: NDArray[np.int64], *, batch_size: int, pad_id: int, seed: int
    ) -> None:
        if len(rows) != len(labels):
            raise ValueError(f"{len(rows)} rows and {len(labels)} labels; expected one label a row")
        self._batches = TextBatches(rows, batch_size=batch_size, pad_id=pad_id, seed=seed)
        self._labels_N = labels

    def identity(self) -> dict[str, Any]:
        """What decides the batches."""
        digest = hashlib.sha256(self._labels_N.astype("<i8").tobytes()).hexdigest()
        return self._batches.identity() | {"labels_sha256": digest}

    def batch(self, step: int, *, part: int = 0, num_parts: int = 1) -> Batch:
        """``input_ids``, ``attention_mask`` (B / num_parts, T) and ``labels`` (B / num_parts,), int64."""
        indices = self._batches.row_indices(step)[part::num_parts]
        return self._batches.batch(step, part=part, num_parts=num_parts) | {
            LABELS: torch.from_numpy(self._labels_N[indices])
        }


def labelled_batches(
    rows: Sequence[TokenRow], labels: NDArray[np.int64], *, batch_size: int, pad_id: int
) -> list[Batch]:
    """Every row once, in the given order, the last batch possibly smaller: for evaluation."""
    return [
        pad_rows(rows[start : start + batch_size], pad_id=pad_id)
        | {LABELS: torch.from_numpy(labels[start : start + batch_size])}
        for start in range(0, len(rows), batch_size)
    ]


class ScoredPairs:
    """Tokenised pairs with the cosine that each shall have, shuffled anew in each epoch.

    Raises:
        ValueError: fewer pairs than a batch takes, or sides of different numbers.
    """

    def __init__(
        self,
        first: Sequence[TokenRow],
        second: Sequence[TokenRow],
        scores: NDArray[np.float32],
        *,
        batch_size: int,
        pad_id: int,
        seed: int,
    ) -> None:
        if not len(first) == len(second) == len(scores):
            raise ValueError(f"{len(first)} first and {len(second)} second sentences with {len(scores)} scores")
        if len(first) < batch_size:
            raise ValueError(f"{len(first)} training pairs do not fill a batch of {batch_size}")
        self._first, self._second, self._scores_N = first, second, scores
        self._batch_size, self._pad_id, self._seed = batch_size, pad_id, seed

    def identity(self) -> dict[str, Any]:
        """What decides the batches."""
        return {
            "rows_sha256": rows_sha256([*self._first, *self._second]),
            "scores_sha256": hashlib.sha256(self._scores_N.astype("<f4").tobytes()).hexdigest(),
            "pad_id": self._pad_id,
        }

    def batch(self, step: int, *, part: int = 0, num_parts: int = 1) -> Batch:
        """Rows of the first sentences, then of the second ones, (2P, T), and ``scores`` (P,)."""
        epoch, index = divmod(step, len(self._first) // self._batch_size)
        order = np.random.default_rng((self._seed, epoch)).permutation(len(self._first))
        chosen = order[index * self._batch_size : (index + 1) * self._batch_size][part::num_parts]
        return pair_batch(
            [self._first[i] for i in chosen],
            [self._second[i] for i in chosen],
            self._scores_N[chosen],
            pad_id=self._pad_id,
        )


def pair_batch(
    first: Sequence[TokenRow], second: Sequence[TokenRow], scores: NDArray[np.float32], *, pad_id: int
) -> Batch:
    """Pairs as one batch: ``input_ids`` and ``attention_mask`` (2P, T), ``scores`` float32 (P,)."""
    return pad_rows([*first, *second], pad_id=pad_id) | {SCORES: torch.from_numpy(scores.astype(np.float32))}
