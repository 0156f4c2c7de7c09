"""Text as one long row of token ids, cut into windows of equal length whose order is a pure function of seed and step.

A language model learns from windows without padding: texts follow one another, with whatever the tokenizer puts between them. The
row is kept in the smallest type that holds the vocabulary (two bytes for BERT's and GPT-2's), and may be a memory-mapped file.

Shapes: N tokens of the row, B rows of a batch, T tokens of a window.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from train.batches.text_batches import Batch

TokenArray = NDArray[np.uint16 | np.int32]

_FIRST_CAPACITY = 1 << 16
_SHA_CHUNK = 1 << 24


def token_dtype(vocab_size: int) -> type[np.uint16 | np.int32]:
    """Smallest type that holds every id."""
    return np.uint16 if vocab_size <= 1 << 16 else np.int32


def pack_rows(
    rows: Iterable[Sequence[int] | NDArray[np.int64]], *, vocab_size: int, limit: int | None = None
) -> TokenArray:
    """Tokenised texts one after the other, as one row; the texts are read once and not kept.

    Args:
        rows: ids of each text, special tokens included.
        vocab_size: ids are below it.
        limit: stop at so many tokens, in the middle of a text if need be.

    Returns:
        Ids (N,), uint16 where the vocabulary fits, else int32.

    Raises:
        ValueError: an id is negative or not below ``vocab_size``.
    """
    packed = np.empty(_FIRST_CAPACITY, dtype=token_dtype(vocab_size))
    used = 0
    for index, row in enumerate(rows):
        if limit is not None and used >= limit:
            break
        ids = np.asarray(row, dtype=np.int64)
        if len(ids) and (ids.min() < 0 or ids.max() >= vocab_size):
            raise ValueError(f"text {index} has token ids {ids.min()} to {ids.max()}; the vocabulary has {vocab_size}")
        if used + len(ids) > len(packed):
            packed = np.concatenate([packed, np.empty(max(len(packed), len(ids)), dtype=packed.dtype)])
        packed[used : used + len(ids)] = ids
        used += len(ids)
    return packed[: used if limit is None else min(used, limit)].copy()


def tokens_sha256(tokens_N: TokenArray) -> str:
    """Hex sha256 of the ids as int32, whatever type holds them; memory stays bounded."""
    digest = hashlib.sha256()
    for start in range(0, len(tokens_N), _SHA_CHUNK):
        digest.update(np.asarray(tokens_N[start : start + _SHA_CHUNK], dtype="<i4").tobytes())
    return digest.hexdigest()


def spread_windows(tokens_N: TokenArray, *, length: int, count: int) -> NDArray[np.int64]:
    """Windows at equal distances over the whole row, for validation and calibration; overlapping where the row is short.

    Returns:
        Ids, int64 (count, length).

    Raises:
        ValueError: the row is shorter than one window.
    """
    _check_row(tokens_N, length=length, windows=1)
    starts = np.linspace(0, len(tokens_N) - length, num=count).astype(np.int64)
    return np.stack([tokens_N[start : start + length] for start in starts]).astype(np.int64)


def as_batch(ids_BT: NDArray[np.int64]) -> Batch:
    """``input_ids`` of rows without padding."""
    return {"input_ids": torch.from_numpy(np.ascontiguousarray(ids_BT))}


class TokenWindows:
    """Shuffled batches of windows, addressed by step.

    Each epoch cuts the row anew, from a random offset below one window, and takes every window once in random order (those
    that do not fill a batch are left out). A batch needs no state, so a resumed run continues exactly, and holds the same
    windows however many processes and parts share it.

    Raises:
        ValueError: the row has fewer tokens than a batch takes.
    """

    def __init__(self, tokens_N: TokenArray, *, length: int, batch_size: int, seed: int) -> None:
        """Bind the row.

        Args:
            tokens_N: ids, from :func:`pack_rows` or a memory-mapped file.
            length: T.
            batch_size: B.
            seed: of the order and the offsets.
        """
        _check_row(tokens_N, length=length, windows=batch_size)
        self._tokens_N, self._length, self._batch_size, self._seed = tokens_N, length, batch_size, seed
        self._order = lru_cache(maxsize=2)(self._make_order)

    @property
    def batches_per_epoch(self) -> int:
        """Full batches in one pass over the row."""
        return _num_windows(self._tokens_N, self._length) // self._batch_size

    def identity(self) -> dict[str, Any]:
        """What decides the batches, for refusing to resume on other data."""
        return {
            "tokens_sha256": tokens_sha256(self._tokens_N),
            "num_tokens": len(self._tokens_N),
            "length": self._length,
        }

    def starts(self, step: int) -> NDArray[np.int64]:
        """First token of each window of batch ``step``, (B,); steps run on through the epochs."""
        epoch, index = divmod(step, self.batches_per_epoch)
        offset, order = self._order(epoch)
        windows = order[index * self._batch_size : (index + 1) * self._batch_size].astype(np.int64)
        return windows * self._length + offset

    def rows(self, step: int) -> NDArray[np.int64]:
        """Ids of batch ``step``, int64 (B, T)."""
        return np.stack([self._tokens_N[start : start + self._length] for start in self.starts(step)]).astype(np.int64)

    def batch(self, step: int, *, part: int = 0, num_parts: int = 1) -> Batch:
        """One part of batch ``step``: every ``num_parts``-th window from ``part`` on.

        Returns:
            ``input_ids``, int64 (B / num_parts, T).
        """
        return as_batch(self.rows(step)[part::num_parts])

    def _make_order(self, epoch: int) -> tuple[int, NDArray[np.int32]]:
        generator = np.random.default_rng((self._seed, epoch))
        offset = int(generator.integers(self._length))
        order = np.arange(_num_windows(self._tokens_N, self._length), dtype=np.int32)
        generator.shuffle(order)
        return offset, order


def _num_windows(tokens_N: ArrayLike, length: int) -> int:
    """Windows that fit behind any offset below one window."""
    return (len(tokens_N) - (length - 1)) // length  # type: ignore[arg-type]


def _check_row(tokens_N: TokenArray, *, length: int, windows: int) -> None:
    needed = length if windows == 1 else (windows + 1) * length - 1
    if len(tokens_N) < needed:
        raise ValueError(f"the texts make {len(tokens_N)} tokens; {windows} windows of {length} need {needed}")
