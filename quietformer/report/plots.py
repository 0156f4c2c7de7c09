"""Inline SVG from matplotlib, without a display and without global state.

Colours are placeholders that become CSS variables, and text stays text in the page's own font, so one drawing serves
light and dark pages. Only this module imports matplotlib.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BEFORE = "#d0021b"
AFTER = "#007a87"
INK = "#111112"
MUTED = "#6b6b6c"
GRID = "#dcdcdd"
THIRD = "#8a5cf6"
FOURTH = "#b8860b"
PAPER = "#ffffff"
SERIES = (AFTER, MUTED, THIRD, FOURTH, BEFORE)
"""For several curves in one panel, the chosen one first."""

SMALL, MEDIUM, WIDE = 3.7, 5.4, 10.0
"""Widths in inches of panels that stand three, two and one in a row of the page, so that their text is equally large."""

_VARIABLES = {
    BEFORE: "var(--before)",
    AFTER: "var(--after)",
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    GRID: "var(--grid)",
    THIRD: "var(--third)",
    FOURTH: "var(--fourth)",
}

_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "quietformer",
    "font.size": 10.0,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": MUTED,
    "axes.titlesize": 11.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.linewidth": 0.8,
    "axes.unicode_minus": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0.0,
    "ytick.major.size": 0.0,
    "xtick.minor.size": 0.0,
    "ytick.minor.size": 0.0,
    "legend.frameon": False,
    "legend.fontsize": 9.0,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
}


@dataclass(kw_only=True)
class Canvas:
    """One panel being drawn, and its SVG once the ``with`` block is over."""

    axes: Axes
    svg: str = ""


@contextmanager
def canvas(name: str, *, width: float = SMALL, height: float = 2.5) -> Iterator[Canvas]:
    """Draw one panel of ``width`` × ``height`` inches; ``name`` (letters, digits, hyphens) keeps its ids apart.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl  # noqa: PLC0415
        from matplotlib.backends.backend_svg import FigureCanvasSVG  # noqa: PLC0415
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'quietformer[report]'") from error
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(figure)
        drawing = Canvas(axes=figure.subplots())
        yield drawing
        stream = io.StringIO()
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    drawing.svg = _inline(stream.getvalue(), name)


def log_ticks(low: float, high: float) -> list[float]:
    """Round values for a logarithmic axis from ``low`` to ``high`` (both positive): 1, 2, 5 steps, or decades over three."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1, 2, 5) if last - first <= 3 else (1,)
    ticks = [step * 10.0**exponent for exponent in range(first, last + 1) for step in steps]
    return [tick for tick in ticks if low <= tick <= high]


def standalone(svg: str) -> str:
    """A drawing as a file of its own, in the colours of a light page."""
    for placeholder, variable in {**_VARIABLES, PAPER: "var(--card)"}.items():
        svg = svg.replace(variable, placeholder)
    opening = '<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif"'
    return f"{svg.replace('<svg', opening, 1)}\n"


def _inline(svg: str, name: str) -> str:
    """What may stand inside an HTML page: no prolog, no metadata, own ids, the page's colours and font."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\s(width|height)="[\d.]+pt"', "", svg, count=2)
    svg = re.sub(r"<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r'\sid="', f' id="{name}-', svg)
    svg = svg.replace("url(#", f"url(#{name}-").replace('xlink:href="#', f'href="#{name}-')
    svg = re.sub(r'\sxmlns(:xlink)?="[^"]*"', "", svg)
    svg = re.sub(r"font: [^;\"]*?([\d.]+)px [^;\"]*", r"font-size: \1px", svg)
    svg = re.sub(r"font-family: [^;\"]*;?", "", svg)
    for placeholder, variable in _VARIABLES.items():
        svg = svg.replace(placeholder, variable)
    return re.sub(r"\s*\n\s*", "\n", svg).strip()
