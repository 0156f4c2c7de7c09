"""Token axes in a graph of static length, found by what depends on a padded token.

The last token is padded, and the graph is run twice with different ids there. Real positions do not see a padded token,
so whatever changes is at padded positions, and it shows which axes count tokens even where the length equals the width
of a head. Behind the softmax a padded key shows as a column of zeros instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.calibration.token_axes import TensorLayout

Array = NDArray[Any]

# Real positions may differ by rounding; padded ones differ by far more.
_ROUNDING = 1e-5


def padded_feeds(feeds: Mapping[str, Array], *, mask_name: str, ids_name: str, token_id: int) -> dict[str, Array]:
    """One row whose last token is padding with ``token_id`` in it."""
    made = {name: value[:1].copy() for name, value in feeds.items()}
    made[mask_name][:] = 1
    made[mask_name][0, -1] = 0
    made[ids_name][0, -1] = token_id
    return made


def probed_layout(
    name: str, layout: TensorLayout, first: Array, second: Array, *, rows: int, length: int
) -> TensorLayout:
    """The layout with its token axes decided.

    Args:
        name: of the tensor, for messages.
        layout: its layout as far as shapes tell; axes as long as the input are candidates.
        first: the tensor of a run of equal rows whose last token is padding.
        second: the same with another id in the padding.
        rows: of both runs.
        length: of the input in tokens.

    Raises:
        ValueError: what changed lies on no candidate axis.
    """
    candidates = layout.candidates(length)
    if not candidates:
        return layout
    one, two = (layout.split_rows(array, rows=rows)[0] for array in (first, second))
    scale = max(float(np.abs(one).max()), float(np.abs(two).max()))
    changed = np.abs(one.astype(np.float64) - two) > _ROUNDING * scale
    if not changed.any():
        # Rows that read no padded token (a pooled one) have no token axis; without rows it is an embedding of positions.
        return layout.with_token_axes(() if layout.batched else candidates[:1], length=length)
    for number in (1, 2):
        for axes in combinations(candidates, number):
            if not changed[_real(axes, changed.ndim)].any():
                keys = [axis for axis in candidates if axis not in axes and _is_padded_key(one, two, axes, axis)]
                return layout.with_token_axes((*axes, *keys), length=length)
    raise ValueError(f"cannot tell which axes of tensor '{name}' of shape {first.shape} hold tokens")


def _real(axes: tuple[int, ...], rank: int) -> tuple[slice, ...]:
    """Index of everything but the last position of ``axes``."""
    return tuple(slice(0, -1) if axis in axes else slice(None) for axis in range(rank))


def _is_padded_key(one: Array, two: Array, axes: tuple[int, ...], axis: int) -> bool:
    """Whether the last position of ``axis`` holds nothing but zeros in real rows: a key that nobody attends to."""
    index = list(_real(axes, one.ndim))
    index[axis] = slice(-1, None)
    return not one[tuple(index)].any() and not two[tuple(index)].any()
