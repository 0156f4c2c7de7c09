"""Batches of similar length: little padding, made once and fed to every candidate alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from deploy.tasks.task import Feeds


class Encoder(Protocol):
    """What a task needs of a tokenizer; :class:`deploy.data.encoding.TextEncoder` is one."""

    def encode(self, texts: Sequence[str], /) -> list[np.ndarray]:
        """Token ids per text, int64, special tokens included, truncated."""

    def feeds(
        self, token_rows: Sequence[np.ndarray], /, *, length: int | None, input_names: Sequence[str]
    ) -> dict[str, np.ndarray]:
        """Padded int64 inputs (batch, length) by name."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LengthBatch:
    """Inputs of one batch and where its rows belong."""

    feeds: Feeds
    """Inputs by name, int64 (batch, length)."""
    rows: np.ndarray
    """Index of each row in the original order, int64 (batch,)."""


def length_batches(
    encoder: Encoder,
    token_rows: Sequence[np.ndarray],
    *,
    input_names: Sequence[str],
    batch_size: int = 32,
    length: int | None = None,
) -> tuple[LengthBatch, ...]:
    """Sort by length (ties keep their order), cut into batches, pad each to its longest row.

    Args:
        encoder: Pads and names the inputs.
        token_rows: Token ids per text.
        input_names: Inputs of the graph.
        batch_size: Rows per batch; the last one may hold fewer.
        length: Static length of the graph in tokens, None to pad to the longest row of each batch.

    Raises:
        ValueError: there is nothing to batch, or ``batch_size`` is below 1.
    """
    if not token_rows:
        raise ValueError("no texts to evaluate")
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}; expected at least 1")
    order_N = np.argsort([len(row) for row in token_rows], kind="stable")
    batches = []
    for start in range(0, len(order_N), batch_size):
        rows = order_N[start : start + batch_size]
        feeds = encoder.feeds([token_rows[row] for row in rows], length=length, input_names=input_names)
        if "attention_mask" not in feeds:
            # Pooling and masking need it even where the graph does not read it.
            raise ValueError(f"the graph takes no attention_mask; it takes {', '.join(input_names)}")
        batches.append(LengthBatch(feeds=feeds, rows=rows))
    return tuple(batches)
