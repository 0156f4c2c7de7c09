"""Which axes of a tensor are rows of the batch and tokens, found by running the graph at two shapes.

Scores have two token axes (queries and keys). A graph of static length cannot be run at two lengths; there an axis as
long as the input is only a candidate, and :mod:`deploy.calibration.padding_probe` decides.

Legend: B rows, T tokens with padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorLayout:
    """Shape of a tensor as a function of batch and length."""

    batched: bool
    """Whether the first axis that is not ``leading`` runs over the rows (times what follows, where other axes were merged into it)."""
    axes: tuple[int | None, ...]
    """The axes of one row: None for a token axis, else their size."""
    stored: tuple[int, ...] = ()
    """Positions before the first token, per token axis, as the keys of a stored prefix; left out where there are none."""
    leading: int = 0
    """Axes of size one before that of the rows, as in a query that was cut out of stacked query, key and value."""

    @property
    def token_axes(self) -> tuple[int, ...]:
        """Token axes of one row."""
        return tuple(axis for axis, size in enumerate(self.axes) if size is None)

    def row_elements(self, length: int) -> int:
        """Elements that one row of ``length`` tokens has."""
        before = dict(zip(self.token_axes, self.stored, strict=False))
        sizes = [length + before.get(axis, 0) if size is None else size for axis, size in enumerate(self.axes)]
        return int(np.prod(sizes, dtype=np.int64))

    def candidates(self, length: int) -> tuple[int, ...]:
        """Axes of one row that are token axes or happen to be as long as the input."""
        return tuple(axis for axis, size in enumerate(self.axes) if size is None or size == length)

    def with_token_axes(self, token_axes: Sequence[int], *, length: int) -> TensorLayout:
        """The same shape at ``length`` with other axes taken for tokens."""
        sizes = [length if size is None else size for size in self.axes]
        return replace(self, axes=tuple(None if axis in token_axes else size for axis, size in enumerate(sizes)))

    def split_rows(self, array: Array, *, rows: int) -> Array:
        """View with the rows as axis 0; a tensor that is the same for every row gets one of size 1."""
        if not self.batched:
            return array[np.newaxis]
        shape = array.shape[self.leading :]
        if len(shape) > len(self.axes):
            return array.reshape(shape)
        return array.reshape(rows, shape[0] // rows, *shape[1:])


def layout_from_shapes(name: str, shapes: Sequence[Shape], runs: Sequence[tuple[int, int]]) -> TensorLayout:
    """Layout of tensor ``name`` from its shapes in several runs at (B, T).

    Where all runs had the same length no axis is taken for tokens.

    Raises:
        ValueError: an axis follows neither batch nor length, nor stays constant.
    """
    lengths = [length for _, length in runs]
    leading = _axes_before_rows(shapes, runs)
    shapes_told, shapes = shapes, [shape[leading:] for shape in shapes]
    merged = [
        shape[0] // rows if shape and shape[0] % rows == 0 else 0 for shape, (rows, _) in zip(shapes, runs, strict=True)
    ]
    # Axis 0 runs over the rows if what is merged with them stays constant, or is the length.
    batched = 0 not in merged and (len(set(merged)) == 1 or merged == lengths)
    rest = list(shapes)
    if batched:
        rest = [shape[1:] if size == 1 else (size, *shape[1:]) for shape, size in zip(shapes, merged, strict=True)]
    axes: list[int | None] = []
    stored: list[int] = []
    for sizes in zip(*rest, strict=True):
        if len(set(sizes)) == 1:
            axes.append(sizes[0])
        elif (
            len(before := {size - length for size, length in zip(sizes, lengths, strict=True)}) == 1
            and min(before) >= 0
        ):
            axes.append(None)
            stored += before
        else:
            raise ValueError(
                f"cannot tell which axes of tensor '{name}' hold tokens: its shape is {shapes_told[0]} at batch and "
                f"length {runs[0]}, {shapes_told[1]} at {runs[1]}"
            )
    return TensorLayout(batched=batched, axes=tuple(axes), stored=tuple(stored) if any(stored) else (), leading=leading)


def _axes_before_rows(shapes: Sequence[Shape], runs: Sequence[tuple[int, int]]) -> int:
    """How many axes of size one stand before one that is the rows; 0 where none is."""
    rows = [batch for batch, _ in runs]
    leading = 0
    while all(len(shape) > leading + 1 and shape[leading] == 1 for shape in shapes):
        leading += 1
        if [shape[leading] for shape in shapes] == rows:
            # Axes of one row alone are rows themselves.
            return 0 if set(rows) == {1} else leading
    return 0


def real_parts(array: Array, mask_BT: NDArray[np.bool_], layout: TensorLayout) -> Iterator[Array]:
    """The values of a tensor at real positions: where every token axis is at a token that is not padding, or before all tokens.

    Args:
        array: the tensor as the graph gave it.
        mask_BT: True on real tokens, (B, T).
        layout: of the tensor.

    Yields:
        Arrays that together hold exactly those values; the whole tensor at once where nothing is padding.
    """
    split = layout.split_rows(array, rows=mask_BT.shape[0])
    if not layout.batched:
        mask_BT = np.logical_or.reduce(mask_BT, axis=0, keepdims=True)
    if mask_BT.all():
        yield split
        return
    for row, mask_T in zip(split, mask_BT, strict=True):
        positions = np.flatnonzero(mask_T)
        if not positions.size:
            continue
        contiguous = positions[-1] - positions[0] + 1 == positions.size
        index = slice(positions[0], positions[-1] + 1) if contiguous else positions
        part = row
        for axis, before in zip_longest(layout.token_axes, layout.stored, fillvalue=0):
            chosen = np.concatenate([np.arange(before), positions + before]) if before else index
            part = part[(slice(None),) * axis + (chosen,)]
        yield part
