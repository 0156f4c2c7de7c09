"""What is sent: texts as they are, texts through the tokenizer, or generated ids, which are called so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from deploy.data.encoding import INPUT_NAMES, TextEncoder
from deploy.load.client import ModelFacts
from deploy.serving.wire_types import BYTES

_TYPES = {"INT64": np.int64, "INT32": np.int32}
_LENGTH = 128
"""Tokens of a row at most, where nothing else is said."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadRequests:
    """Requests of equally many rows, sent in turn."""

    arrays: list[dict[str, np.ndarray]]
    rows: int
    """Of each request."""
    what: str
    """For a person: what the rows are."""


def make_requests(
    model: ModelFacts,
    *,
    rows: int,
    count: int,
    texts: Sequence[str] | None,
    tokenizer: Path | None,
    length: int | None,
    vocabulary: int,
    seed: int,
) -> LoadRequests:
    """Requests for a model that takes texts or tokens.

    Args:
        model: whose inputs.
        rows: of each request.
        count: of requests.
        texts: real ones, in turn; None generates ids.
        tokenizer: makes tokens of texts.
        length: tokens that every row is cut and padded to; None pads to the longest of a request, and cuts at 128.
        vocabulary: generated ids are below it.
        seed: of generated ids.

    Raises:
        ValueError: a batch above the model's limit, a tokenizer or texts are missing, or inputs that cannot be made.
    """
    if model.max_batch_size and rows > model.max_batch_size:
        raise ValueError(f"{rows} rows a request are above the {model.max_batch_size} that '{model.name}' takes")
    if texts is not None and not texts:
        raise ValueError("there are no texts to send")
    names = list(model.inputs)
    if list(model.inputs.values()) == [BYTES]:
        if texts is None:
            raise ValueError(f"'{model.name}' takes texts; name a file of them with --data")
        return _text_requests(names[0], texts, rows=rows, count=count)
    if unknown := [name for name in names if name not in INPUT_NAMES]:
        raise ValueError(f"input '{unknown[0]}' of '{model.name}' cannot be made; expected {', '.join(INPUT_NAMES)}")
    kinds = {name: _TYPES.get(datatype) for name, datatype in model.inputs.items()}
    if odd := [name for name, kind in kinds.items() if kind is None]:
        raise ValueError(f"input '{odd[0]}' of '{model.name}' is not of integers")
    longest = length or _LENGTH
    if texts is None:
        token_rows = list(np.random.default_rng(seed).integers(1, vocabulary, (rows * count, longest)))
        feeds = [_generated(token_rows[place * rows : (place + 1) * rows], names) for place in range(count)]
        what = f"generated ids below {vocabulary}, {longest} tokens a row (not texts)"
    else:
        if tokenizer is None:
            raise ValueError(f"'{model.name}' takes tokens; name the tokenizer.json of the texts with --tokenizer")
        encoder = TextEncoder(tokenizer, max_length=longest)
        encoded = encoder.encode(texts)
        chosen = [[encoded[(place * rows + row) % len(encoded)] for row in range(rows)] for place in range(count)]
        feeds = [encoder.feeds(each, length=length, input_names=names) for each in chosen]
        padded = f", padded to {length}" if length else ""
        what = f"{min(rows * count, len(texts))} texts as tokens, {_lengths(encoded)} a row{padded}"
    arrays = [{name: array.astype(kinds[name], copy=False) for name, array in each.items()} for each in feeds]
    return LoadRequests(arrays=arrays, rows=rows, what=what)


def _text_requests(name: str, texts: Sequence[str], *, rows: int, count: int) -> LoadRequests:
    arrays = []
    for place in range(count):
        array = np.empty((rows, 1), np.object_)
        array[:, 0] = [texts[(place * rows + row) % len(texts)].encode() for row in range(rows)]
        arrays.append({name: array})
    return LoadRequests(arrays=arrays, rows=rows, what=f"{min(rows * count, len(texts))} texts as they are")


def _generated(token_rows: Sequence[np.ndarray], names: Sequence[str]) -> dict[str, np.ndarray]:
    ids = np.stack(token_rows)
    made = dict(zip(INPUT_NAMES, (ids, np.ones_like(ids), np.zeros_like(ids)), strict=True))
    return {name: made[name] for name in names}


def _lengths(rows: Sequence[np.ndarray]) -> str:
    lengths = [len(row) for row in rows]
    return f"{min(lengths)} to {max(lengths)}, {np.mean(lengths):.0f} on average,"
