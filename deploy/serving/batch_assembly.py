"""Requests joined into one batch, and its outputs taken apart again.

Rows of different lengths are padded behind their tokens; the mask keeps padding out of every row's own result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from deploy.backends.base import Feeds

LENGTHS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
"""Lengths that rows are padded to: few shapes for the runtime to prepare, and little padding."""


def padded_length(length: int, longest: int | None) -> int:
    """The length that rows of ``length`` tokens run at; never above the ``longest`` that the model takes."""
    padded = next((step for step in LENGTHS if step >= length), length)
    return padded if longest is None else min(padded, longest)


def join(parts: Sequence[Feeds], *, length: int | None, fills: Mapping[str, int]) -> Feeds:
    """One batch of several requests.

    Args:
        parts: inputs of each, rows on axis 0.
        length: pad axis 1 to so many; None where no input is padded.
        fills: what padding holds, by input; 0 for others.
    """
    if len(parts) == 1 and (length is None or all(array.shape[1] == length for array in parts[0].values())):
        return dict(parts[0])
    if length is None:
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    rows = sum(len(next(iter(part.values()))) for part in parts)
    joined: Feeds = {}
    for name, first in parts[0].items():
        array = np.full((rows, length), fills.get(name, 0), first.dtype)
        place = 0
        for part in parts:
            values = part[name]
            array[place : place + len(values), : values.shape[1]] = values
            place += len(values)
        joined[name] = array
    return joined


def split(
    outputs: Mapping[str, np.ndarray],
    rows: Sequence[int],
    lengths: Sequence[int] | None,
    length_axes: Mapping[str, int],
) -> list[dict[str, np.ndarray]]:
    """Each request's share of a batch's outputs, as views.

    Args:
        outputs: of the batch, rows on axis 0.
        rows: of each request.
        lengths: of each request before padding; None where nothing was padded.
        length_axes: outputs that were padded, and the axis where.
    """
    shares = []
    place = 0
    for index, count in enumerate(rows):
        share = {name: array[place : place + count] for name, array in outputs.items()}
        if lengths is not None:
            for name, axis in length_axes.items():
                share[name] = share[name][(slice(None),) * axis + (slice(lengths[index]),)]
        shares.append(share)
        place += count
    return shares
