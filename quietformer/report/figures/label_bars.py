"""Horizontal bars with a text each: tokens and how much lies on them."""

from __future__ import annotations

from collections.abc import Sequence

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
from quietformer.report.number_text import figure
from quietformer.report.plots import SMALL

_LONGEST_LABEL = 14


def label_bars(
    labels: Sequence[str],
    values: Sequence[float],
    *,
    heading: str,
    marked: Sequence[bool],
    texts: Sequence[str] | None = None,
    axis: str = "",
    inches: float = SMALL,
    bar_height: float | None = None,
) -> str:
    """SVG of one bar per label, top first.

    Args:
        labels: of the bars.
        values: lengths, at least 0.
        heading: title.
        marked: bars that stand out.
        texts: behind the bars; by default their values, where there are at most 16.
        axis: what the length is.
        inches: width of the panel.
        bar_height: in points, the gap included.
    """
    width = panel_width(inches)
    few = len(labels) <= 16
    size = LABEL_SIZE if few else SMALL_SIZE
    height = bar_height or (14.0 if few else 7.6)
    shown = [shortened(text, _LONGEST_LABEL) for text in labels]
    behind = list(texts) if texts is not None else [figure(value) for value in values] if few else [""] * len(labels)
    left = 8 + max(text_width(text, size) for text in shown)
    room = width - left - 6 - max(text_width(text, size) for text in behind)
    longest = max(values, default=0.0)
    parts = [title(heading)]
    for index, (text, value) in enumerate(zip(shown, values, strict=True)):
        y = TITLE_HEIGHT + index * height
        base = y + height / 2 + size * 0.35
        color = "before" if marked[index] else "after"
        length = room * value / longest if longest > 0 else 0.0
        parts.append(label(left - 4, base, text, size=size, color="ink" if marked[index] else "muted", more=_END))
        parts.append(
            f'<rect x="{left:.1f}" y="{y + height * 0.14:.2f}" width="{length:.2f}" height="{height * 0.72:.2f}"'
            f' fill="var(--{color})"/>'
        )
        if behind[index]:
            parts.append(label(left + length + 4, base, behind[index], size=size))
    end = TITLE_HEIGHT + len(shown) * height
    if axis:
        parts.append(label(left, end + 11, axis))
        end += 14
    return drawing(width, end + 2, parts)


_END = ' text-anchor="end"'
