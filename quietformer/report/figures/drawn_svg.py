"""What the drawings that are written as SVG directly share: units, text and labels.

Matplotlib would write a heat map as one path per cell or as a bitmap, which is large or knows no dark page. These are a few
kilobytes, take the page's colours and font, and use the same units (points) as ``quietformer.report.plots``.
"""

from __future__ import annotations

from html import escape

from quietformer.report.plots import WIDE

POINTS = 72.0
"""Per inch."""
TITLE_HEIGHT = 22.0
TITLE_SIZE, LABEL_SIZE, SMALL_SIZE = 11.0, 9.0, 6.8
_CHARACTER_WIDTH = 0.64
"""Of a letter, in font sizes; on the generous side."""


def text_width(text: str, size: float) -> float:
    """Room that a text needs, in points."""
    return _CHARACTER_WIDTH * size * len(text)


def shortened(text: str, characters: int) -> str:
    """At most so many characters, the last one an ellipsis where something was cut."""
    return text if len(text) <= characters else text[: characters - 1] + "\N{HORIZONTAL ELLIPSIS}"


def label(x: float, y: float, text: str, *, size: float = LABEL_SIZE, color: str = "muted", more: str = "") -> str:
    """A text whose baseline starts at ``x``, ``y``; ``more`` holds further attributes."""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" fill="var(--{color})"{more}>{escape(text)}</text>'


def title(text: str) -> str:
    """The heading of a panel, as matplotlib's are."""
    return label(2, 12, text, size=TITLE_SIZE, color="ink", more=' font-weight="bold"')


def drawing(width: float, height: float, parts: list[str]) -> str:
    """The whole panel."""
    body = "\n".join(parts)
    return f'<svg viewBox="0 0 {width:.1f} {height:.1f}">\n{body}\n</svg>'


def panel_width(inches: float = WIDE) -> float:
    """Points of a panel of ``quietformer.report.plots``' widths."""
    return inches * POINTS
