"""Calibrated range of every quantization site, before and after."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quietformer.report.content import SiteRange
from quietformer.report.figures.plot import Plot
from quietformer.report.number_text import figure, tick
from quietformer.report.plots import AFTER, BEFORE, WIDE, canvas


def range_plots(before: Sequence[SiteRange], after: Sequence[SiteRange]) -> list[Plot]:
    """One wide panel over the sites that both graphs have, in the order of the graph; nothing when there are none."""
    new = {entry.site: entry for entry in after}
    shared = [(entry, new[entry.site]) for entry in before if entry.site in new]
    if not shared:
        return []
    widest = max(shared, key=lambda pair: _reach(pair[0]))
    narrower = sum(_reach(new_entry) < _reach(old_entry) for old_entry, new_entry in shared)
    with canvas("ranges", width=WIDE, height=3.4) as drawing:
        axes = drawing.axes
        places_S = np.arange(len(shared))
        wide = max(2.0, min(8.0, 460 / len(shared)))
        for column, color, width, alpha in ((0, BEFORE, wide, 0.75), (1, AFTER, wide / 2, 1.0)):
            low_S = [pair[column].low for pair in shared]
            high_S = [pair[column].high for pair in shared]
            axes.vlines(places_S, low_S, high_S, color=color, linewidth=width, alpha=alpha)
        axes.set_yscale("symlog", linthresh=1.0)
        axes.yaxis.set_major_formatter(lambda value, _position: tick(value))
        axes.set_xlim(-1, len(shared))
        axes.grid(visible=False, axis="x")
        axes.set_title("Calibrated range of every activation that is quantized")
        axes.set_xlabel("site, in the order of the graph")
    return [
        Plot(
            svg=drawing.svg,
            alt=(
                f"Ranges of {len(shared)} sites before and after; {narrower} are narrower after. Widest before:"
                f" {widest[0].site}, {figure(widest[0].low)} to {figure(widest[0].high)}; after:"
                f" {figure(widest[1].low)} to {figure(widest[1].high)}."
            ),
            caption=(
                f"{narrower} of {len(shared)} sites have a narrower range after (in front). Logarithmic beyond ±1."
                f" Widest before: {widest[0].site}."
            ),
            evidence="measured",
            wide=True,
        )
    ]


def _reach(entry: SiteRange) -> float:
    return max(abs(entry.low), abs(entry.high))
