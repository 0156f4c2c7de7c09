"""Throughput over latency of a load sweep, as one SVG file."""

from __future__ import annotations

from collections.abc import Mapping

from deploy.load.sweep import Sweep
from quietformer.report.plots import AFTER, MEDIUM, MUTED, THIRD, canvas, standalone


def load_plot(sweep: Sweep, bare: Mapping[int, float]) -> str:
    """Median and 99th percentile of the latency at each throughput; bare sessions as lines.

    Args:
        sweep: measured points; those without an answer are left out.
        bare: rows a second of the bare session, by requests in a batch.

    Raises:
        ValueError: nothing was answered.
        ImportError: matplotlib is not installed.
    """
    points = [point for point in sweep.points if point.latency is not None]
    if not points:
        raise ValueError("no request was answered; there is nothing to draw")
    with canvas("load", width=MEDIUM, height=3.2) as drawing:
        axes = drawing.axes
        for is_open, marker in ((False, "o"), (True, "s")):
            chosen = [point for point in points if (point.rate is not None) is is_open]
            if not chosen:
                continue
            kind = "open loop" if is_open else "closed loop"
            places = [point.rows_per_second for point in chosen]
            medians = [point.latency.median for point in chosen if point.latency]
            worst = [point.latency.p99 for point in chosen if point.latency]
            axes.plot(places, medians, color=AFTER, marker=marker, label=f"p50, {kind}")
            axes.plot(places, worst, color=THIRD, marker=marker, label=f"p99, {kind}")
            for point, place, height in zip(chosen, places, worst, strict=True):
                label = f"{point.rate:g}/s" if point.rate is not None else f"{point.clients}"
                axes.annotate(
                    label, (place, height), textcoords="offset points", xytext=(0, 5), color=MUTED, ha="center"
                )
        for batch, rows in bare.items():
            axes.axvline(rows, color=MUTED, linestyle=":", linewidth=1.2)
            axes.annotate(
                f"bare, {batch}",
                (rows, 1),
                xycoords=("data", "axes fraction"),
                color=MUTED,
                rotation=90,
                va="top",
                ha="right",
            )
        axes.set_yscale("log")
        axes.set_xlim(left=0)
        axes.set_xlabel("rows a second")
        axes.set_ylabel("latency, ms")
        axes.set_title(sweep.model.name)
        axes.legend(loc="lower right")
    return standalone(drawing.svg)
