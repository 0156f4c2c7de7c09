"""A matrix as a field of cells whose strength is their value; written as one path per shade.

Legend: R rows, C columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from quietformer.report.figures.drawn_svg import (
    LABEL_SIZE,
    SMALL_SIZE,
    TITLE_HEIGHT,
    drawing,
    label,
    panel_width,
    shortened,
    text_width,
    title,
)
from quietformer.report.number_text import tick
from quietformer.report.plots import SMALL

_SHADES = 20
_LONGEST_LABEL = 12
_LARGEST_CELL = 34.0
_BOTTOM = 26.0


def heat_map(
    values: ArrayLike,
    *,
    heading: str,
    rows: Sequence[str],
    columns: Sequence[str],
    row_axis: str = "",
    column_axis: str = "",
    largest: float | None = None,
    numbers: bool = False,
    inches: float = SMALL,
    cell_height: float | None = None,
    marked_columns: frozenset[int] = frozenset(),
    color: str = "after",
) -> str:
    """SVG of a matrix.

    Args:
        values: (R, C), at least 0.
        heading: title.
        rows: R labels, top first; empty ones are left out.
        columns: C labels, written upright where they do not fit side by side.
        row_axis: what rows are.
        column_axis: what columns are.
        largest: the value of full strength; by default the largest one.
        numbers: write each value into its cell.
        inches: width of the panel.
        cell_height: in points; by default as high as wide, within reason.
        marked_columns: columns whose labels stand out.
        color: CSS variable of full strength.
    """
    values_RC = np.asarray(values, dtype=np.float64)
    num_rows, num_columns = values_RC.shape
    width = panel_width(inches)
    size = LABEL_SIZE if num_rows <= 16 else SMALL_SIZE
    column_size = LABEL_SIZE if num_columns <= 16 else SMALL_SIZE
    row_texts = [shortened(text, _LONGEST_LABEL) for text in rows]
    column_texts = [shortened(text, _LONGEST_LABEL) for text in columns]
    left = 6 + max((text_width(text, size) for text in row_texts), default=0) + (12 if row_axis else 0)
    cell = (width - left - 4) / num_columns
    height = cell_height or min(cell, _LARGEST_CELL)
    upright = max((text_width(text, column_size) for text in column_texts), default=0) > cell * 0.95
    below = max((text_width(text, column_size) for text in column_texts), default=0) + 6 if upright else 13
    bottom = TITLE_HEIGHT + num_rows * height
    parts = [title(heading), _frame(left, num_rows * height, cell * num_columns)]
    top = float(values_RC.max()) if largest is None else largest
    parts += _cells(values_RC / top if top > 0 else values_RC, left, cell, height, color)
    for row, text in enumerate(row_texts):
        x, y = left - 4, TITLE_HEIGHT + (row + 0.5) * height + size * 0.35
        parts.append(label(x, y, text, size=size, more=' text-anchor="end"'))
    for column, text in enumerate(column_texts):
        x = left + (column + 0.5) * cell
        mark = "before" if column in marked_columns else "muted"
        if upright:
            x += column_size * 0.35
            turned = f' text-anchor="end" transform="rotate(-90 {x:.1f} {bottom + 4:.1f})"'
            parts.append(label(x, bottom + 4, text, size=column_size, color=mark, more=turned))
        else:
            parts.append(label(x, bottom + 11, text, size=column_size, color=mark, more=' text-anchor="middle"'))
    if numbers:
        parts += _numbers(values_RC, top, left, cell, height)
    end = bottom + below
    if column_axis:
        parts.append(label(left + cell * num_columns / 2, end + 10, column_axis, more=' text-anchor="middle"'))
        end += 14
    if row_axis:
        middle = TITLE_HEIGHT + num_rows * height / 2
        parts.append(label(9, middle, row_axis, more=f' text-anchor="middle" transform="rotate(-90 9 {middle:.1f})"'))
    return drawing(width, end + 2, parts)


def _frame(left: float, height: float, width: float) -> str:
    return (
        f'<rect x="{left:.2f}" y="{TITLE_HEIGHT:g}" width="{width:.2f}" height="{height:.2f}"'
        ' fill="none" stroke="var(--grid)" stroke-width="0.8"/>'
    )


def _cells(shares_RC: np.ndarray, left: float, cell: float, height: float, color: str) -> list[str]:
    shade_RC = np.rint(np.clip(shares_RC, 0.0, 1.0) * _SHADES).astype(int)
    parts = []
    for shade in range(1, _SHADES + 1):
        path = "".join(
            f"M{left + column * cell:.2f} {TITLE_HEIGHT + row * height:.2f}h{cell:.2f}v{height:.2f}h-{cell:.2f}z"
            for row, column in zip(*np.nonzero(shade_RC == shade), strict=True)
        )
        if path:
            parts.append(f'<path d="{path}" fill="var(--{color})" fill-opacity="{shade / _SHADES:g}"/>')
    return parts


def _numbers(values_RC: np.ndarray, top: float, left: float, cell: float, height: float) -> list[str]:
    size = min(8.0, cell / 2.6, height * 0.6)
    parts = []
    for (row, column), value in np.ndenumerate(values_RC):
        strong = top > 0 and value > 0.55 * top
        text = tick(float(f"{value:.2g}")) if value else "0"
        parts.append(
            label(
                left + (column + 0.5) * cell,
                TITLE_HEIGHT + (row + 0.5) * height + size * 0.35,
                text,
                size=round(size, 1),
                color="card" if strong else "ink",
                more=' text-anchor="middle"',
            )
        )
    return parts
