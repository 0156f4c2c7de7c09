"""The batches to calibrate on: a random subset of texts that seed and sizes decide alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.encoding import INPUT_NAMES, TextEncoder

Batch = dict[str, NDArray[np.int64]]


def calibration_batches(
    texts: Sequence[str],
    encoder: TextEncoder,
    *,
    batches: int = 16,
    batch_size: int = 16,
    seed: int,
    length: int | None = None,
    input_names: Iterable[str] = INPUT_NAMES,
) -> tuple[list[Batch], list[int]]:
    """Draw texts without repetition and encode them.

    Args:
        texts: to draw from.
        encoder: cuts each to its ``max_length`` tokens.
        batches: how many batches to make.
        batch_size: rows of each.
        seed: of the draw.
        length: pad every batch to so many tokens; by default each to its own longest row.
        input_names: the graph's inputs.

    Returns:
        The batches, each int64 (batch_size, T) by input name, and the texts' indices in the order of the rows.

    Raises:
        ValueError: fewer texts than needed, or a size below 1.
    """
    if batches < 1 or batch_size < 1:
        raise ValueError(f"{batches} batches of {batch_size}; expected at least 1 of each")
    if len(texts) < (needed := batches * batch_size):
        raise ValueError(f"{len(texts)} texts; {batches} batches of {batch_size} need {needed}")
    indices = [int(index) for index in np.random.default_rng(seed).permutation(len(texts))[:needed]]
    rows = encoder.encode([texts[index] for index in indices])
    names = list(input_names)
    made = [
        encoder.feeds(rows[start : start + batch_size], length=length, input_names=names)
        for start in range(0, needed, batch_size)
    ]
    return made, indices


def preprocessing_identity(encoder: TextEncoder, *, length: int | None = None) -> dict[str, Any]:
    """What a calibration cache says of tokenizer, length and padding."""
    return {
        "tokenizer_sha256": encoder.tokenizer_sha256,
        "max_length": encoder.max_length,
        "padding": "longest row" if length is None else f"to {length} tokens",
        "pad_token_id": encoder.pad_token_id,
    }


def random_batches(
    *,
    vocab_size: int,
    length: int,
    batches: int = 16,
    batch_size: int = 16,
    seed: int,
    input_names: Iterable[str] = INPUT_NAMES,
) -> list[Batch]:
    """Batches of random token ids, for builds that nobody measures accuracy on.

    Returns:
        int64 (batch_size, length) by input name, nothing padded.

    Raises:
        ValueError: an input that is not one of text.
    """
    generator = np.random.default_rng(seed)
    names = list(input_names)
    if unknown := sorted(set(names) - set(INPUT_NAMES)):
        raise ValueError(f"cannot make input '{unknown[0]}' at random; known are {', '.join(INPUT_NAMES)}")
    made = []
    for _ in range(batches):
        ids_BT = generator.integers(0, vocab_size, (batch_size, length), dtype=np.int64)
        batch = dict(zip(INPUT_NAMES, (ids_BT, np.ones_like(ids_BT), np.zeros_like(ids_BT)), strict=True))
        made.append({name: batch[name] for name in names})
    return made
