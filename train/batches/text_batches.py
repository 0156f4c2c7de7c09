"""Tokenised rows as padded batches whose content is a pure function of seed and step.

Shapes: B rows of a batch, T tokens of its longest row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

TokenRow = NDArray[np.int64]
Batch = dict[str, torch.Tensor]

# Batches whose rows are sorted by length together: large enough that padding almost vanishes, small enough that a batch
# still mixes rows from all over the data.
_WINDOW_BATCHES = 32


def pad_rows(rows: Sequence[TokenRow], *, pad_id: int) -> Batch:
    """Rows padded on the right to the longest of them.

    Args:
        rows: 1-D integer arrays of token ids, at least one.
        pad_id: id that fills the padded positions.

    Returns:
        ``input_ids`` and ``attention_mask`` (1 on real tokens), int64, (B, T).
    """
    ids_BT = np.full((len(rows), max(len(row) for row in rows)), pad_id, dtype=np.int64)
    mask_BT = np.zeros_like(ids_BT)
    for index, row in enumerate(rows):
        ids_BT[index, : len(row)] = row
        mask_BT[index, : len(row)] = 1
    return {"input_ids": torch.from_numpy(ids_BT), "attention_mask": torch.from_numpy(mask_BT)}


def check_rows(rows: Sequence[TokenRow], *, max_length: int | None = None, what: str = "training") -> None:
    """Refuse rows that no model can read.

    Raises:
        ValueError: there is no row, a row is not a non-empty 1-D integer array, or it is longer than ``max_length``.
    """
    if not len(rows):
        raise ValueError(f"no {what} rows; expected at least one tokenised text")
    for index, row in enumerate(rows):
        if row.ndim != 1 or not len(row) or not np.issubdtype(row.dtype, np.integer):
            raise ValueError(
                f"{what} row {index} has shape {row.shape} and type {row.dtype}; expected a non-empty 1-D integer array"
            )
        if max_length is not None and len(row) > max_length:
            raise ValueError(f"{what} row {index} has {len(row)} tokens; expected at most {max_length}")


def sequential_batches(rows: Sequence[TokenRow], *, batch_size: int, pad_id: int) -> list[Batch]:
    """Every row once, in the given order, the last batch possibly smaller: for calibration and evaluation."""
    return [pad_rows(rows[start : start + batch_size], pad_id=pad_id) for start in range(0, len(rows), batch_size)]


def rows_sha256(rows: Sequence[TokenRow]) -> str:
    """Hex sha256 of the rows' lengths and ids: the identity of tokenised data."""
    digest = hashlib.sha256(np.array([len(row) for row in rows], dtype="<i8").tobytes())
    for row in rows:
        digest.update(row.astype("<i8", copy=False).tobytes())
    return digest.hexdigest()


class TextBatches:
    """Shuffled batches of rows of similar length, addressed by step.

    Each epoch is a fresh permutation from ``(seed, epoch)``. Rows that do not fill a batch are left out *before* anything
    is sorted, so which ones is chance, not length, and changes with the epoch; every other row comes exactly once. The
    permutation is cut into windows of batches, each window sorted by length and cut into batches, and all batches are
    shuffled: the order in which lengths appear is random too.

    Batch ``step`` needs no state, so a resumed run continues exactly; and it holds the same rows however many
    processes and parts share it.

    Raises:
        ValueError: a row is unusable, or there are fewer rows than a batch takes.
    """

    def __init__(self, rows: Sequence[TokenRow], *, batch_size: int, pad_id: int, seed: int) -> None:
        check_rows(rows)
        if len(rows) < batch_size:
            raise ValueError(f"{len(rows)} training rows do not fill a batch of {batch_size}")
        self._rows = rows
        self._lengths = np.array([len(row) for row in rows])
        self._batch_size = batch_size
        self._pad_id = pad_id
        self._seed = seed
        self._plan = lru_cache(maxsize=2)(self._make_plan)

    @property
    def batches_per_epoch(self) -> int:
        """Full batches in one pass over the rows."""
        return len(self._rows) // self._batch_size

    def identity(self) -> dict[str, Any]:
        """What decides the batches, for refusing to resume on other data."""
        return {"rows_sha256": rows_sha256(self._rows), "num_rows": len(self._rows), "pad_id": self._pad_id}

    def row_indices(self, step: int) -> NDArray[np.int64]:
        """Indices of the rows in batch ``step``, shortest first; steps run on through the epochs."""
        epoch, index = divmod(step, self.batches_per_epoch)
        indices: NDArray[np.int64] = self._plan(epoch)[index]
        return indices

    def batch(self, step: int, *, part: int = 0, num_parts: int = 1) -> Batch:
        """One part of batch ``step``: every ``num_parts``-th row from ``part`` on, so parts have similar lengths.

        Returns:
            ``input_ids`` and ``attention_mask``, int64, (B / num_parts, T).
        """
        return pad_rows([self._rows[i] for i in self.row_indices(step)[part::num_parts]], pad_id=self._pad_id)

    def _make_plan(self, epoch: int) -> NDArray[np.int64]:
        generator = np.random.default_rng((self._seed, epoch))
        order = generator.permutation(len(self._rows))[: self.batches_per_epoch * self._batch_size]
        window = _WINDOW_BATCHES * self._batch_size
        by_length = [
            part[np.argsort(self._lengths[part], kind="stable")]
            for part in (order[start : start + window] for start in range(0, len(order), window))
        ]
        plan = np.concatenate(by_length).reshape(self.batches_per_epoch, self._batch_size)
        return plan[generator.permutation(len(plan))]
