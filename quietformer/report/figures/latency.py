"""Latency distributions of one benchmark: boxes for people, cumulative shares for whoever must meet a percentile."""

from __future__ import annotations

import numpy as np

from deploy.measuring.bench_report import BenchReport
from quietformer.report.figures.plot import Plot
from quietformer.report.number_text import milliseconds
from quietformer.report.pairing import is_eight_bit
from quietformer.report.plots import AFTER, BEFORE, INK, MEDIUM, SERIES, canvas

_MAX_POINTS = 160
"""Points of a cumulative curve; more cannot be seen."""


def latency_plots(latency: BenchReport) -> list[Plot]:
    """Two panels."""
    shape = latency.title
    samples = [np.sort(np.concatenate([np.asarray(one) for one in t.rounds_ms])) for t in latency.timings]
    colors = _colors(latency)
    # A single long pause must not squeeze everything else against the axis.
    limit = 1.15 * max(float(np.quantile(one, 0.99)) for one in samples)
    medians = "; ".join(f"{t.name} {milliseconds(t.latency_ms.median)}" for t in latency.timings)
    name = latency.slug
    with canvas(f"{name}-box", width=MEDIUM, height=0.9 + 0.62 * len(samples)) as drawing:
        axes = drawing.axes
        for place, (timing, values, color) in enumerate(zip(latency.timings, samples, colors, strict=True)):
            low, first, median, third, high, tail = np.quantile(values, [0.01, 0.25, 0.5, 0.75, 0.95, 0.99])
            axes.hlines(place, low, high, color=color, linewidth=1.4)
            axes.barh(place, third - first, left=first, height=0.3, color=color)
            axes.vlines(median, place - 0.24, place + 0.24, color=INK, linewidth=1.8)
            axes.plot([tail], [place], color=color, marker="|", markersize=9)
            axes.annotate(
                f"{timing.name}: {milliseconds(float(median))}",
                (0.0, place - 0.3),
                (3, 0),
                textcoords="offset points",
                va="bottom",
                color=color,
                fontsize=9,
            )
        axes.set_xlim(0, limit)
        axes.set_ylim(len(samples) - 0.5, -0.85)
        axes.set_yticks([])
        axes.grid(visible=False, axis="y")
        axes.spines["left"].set_visible(False)
        axes.set_title(f"Latency, {shape}")
        axes.set_xlabel("ms")
    box = Plot(
        svg=drawing.svg,
        alt=f"Latency at {shape}, medians: {medians}.",
        caption="Box: middle half; line: 1 % to 95 %; tick: p99; black: median.",
        evidence="measured",
    )
    with canvas(f"{name}-share", width=MEDIUM, height=0.9 + 0.62 * len(samples)) as drawing:
        axes = drawing.axes
        for timing, values, color in zip(latency.timings, samples, colors, strict=True):
            share_P = np.linspace(0, 1, min(_MAX_POINTS, len(values)))
            axes.plot(np.quantile(values, share_P), share_P * 100, color=color, label=timing.name)
        axes.set_xlim(0, limit)
        axes.set_ylim(0, 102)
        axes.legend(loc="lower right")  # where every curve has long been at the top
        axes.set_title("Share of calls answered within …")
        axes.set_xlabel("ms")
        axes.yaxis.set_major_formatter(lambda value, _position: f"{value:.0f} %")
    tails = "; ".join(f"{t.name} {milliseconds(t.latency_ms.p99)}" for t in latency.timings)
    curve = Plot(
        svg=drawing.svg,
        alt=f"Cumulative share of calls by latency at {shape}; p99: {tails}.",
        caption=f"The steeper, the steadier. p99: {tails}.",
        evidence="measured",
    )
    return [box, curve]


def _colors(latency: BenchReport) -> list[str]:
    """The baseline in the colour of before, 8-bit candidates in the colour of after, others apart."""
    others = [color for color in SERIES if color not in {AFTER, BEFORE}]
    colors = []
    eight_bit = 0
    for index, timing in enumerate(latency.timings):
        if timing.name == latency.baseline:
            colors.append(BEFORE)
        elif is_eight_bit(timing) and not eight_bit:
            colors.append(AFTER)
            eight_bit += 1
        else:
            colors.append(others[index % len(others)])
    return colors
