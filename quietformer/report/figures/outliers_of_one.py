"""Outliers of a single model: per layer and kind of tensor, and where each hidden dimension stands in the worst one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from quietformer.report.figures.plot import Plot
from quietformer.report.number_text import figure, tick
from quietformer.report.outlier_content import TensorView, by_layer, tensor_views
from quietformer.report.plots import BEFORE, MUTED, WIDE, canvas, log_ticks

_PEAKS_NAMED = 3
_PEAK_SHARE = 0.25
"""Of the largest value: dimensions above it are named."""


def outlier_plots_of_one(outliers: Mapping[str, Any]) -> list[Plot]:
    """One panel per kind of layer tensor on a common scale, then the worst tensor by hidden dimension."""
    views = tensor_views(outliers)
    series = by_layer(views)
    values = [value for _, largest in series.values() for value in largest if value > 0]
    if not values:
        return []
    limits = (min(values) / 1.6, max(values) * 1.6)
    plots = [_per_layer(label, layers, largest, limits) for label, (layers, largest) in series.items()]
    worst = max((view for view in views if view.layer is not None), key=lambda view: view.largest)
    return [*plots, _per_dimension(worst)]


def _per_layer(label: str, layers: list[int], largest: list[float], limits: tuple[float, float]) -> Plot:
    with canvas(f"layers-{label.lower().replace(' ', '-')}") as drawing:
        axes = drawing.axes
        axes.plot(layers, largest, color=BEFORE, marker="o", markersize=5)
        axes.set_yscale("log")
        axes.set_ylim(*limits)
        axes.set_xticks(layers if len(layers) <= 12 else layers[::2])
        ticks = log_ticks(*limits)
        axes.set_yticks(ticks, [tick(value) for value in ticks])
        axes.minorticks_off()
        axes.grid(visible=False, axis="x")
        axes.set_title(label)
        axes.set_xlabel("layer")
    text = f"at most {figure(max(largest))}, in layer {layers[int(np.argmax(largest))]}"
    return Plot(
        svg=drawing.svg,
        alt=f"{label}: largest absolute value per layer, {text}.",
        caption=f"Largest |x| per layer: {text}.",
        evidence="measured",
    )


def _per_dimension(worst: TensorView) -> Plot:
    largest_D = np.asarray(worst.largest_by_feature)
    top, median = float(largest_D.max()), float(np.median(largest_D))
    with canvas("dimensions", width=WIDE, height=3.0) as drawing:
        axes = drawing.axes
        axes.vlines(np.arange(len(largest_D)), 0, largest_D, color=BEFORE, linewidth=1.4)
        for peak in np.argsort(largest_D)[::-1][:_PEAKS_NAMED]:
            if largest_D[peak] > _PEAK_SHARE * top:
                place = (float(peak), float(largest_D[peak]))
                axes.annotate(str(peak), place, (4, -2), textcoords="offset points", color=MUTED, fontsize=9, va="top")
        axes.set_xlim(-len(largest_D) * 0.01, len(largest_D) * 1.01)
        axes.set_ylim(0, top * 1.08)
        axes.grid(visible=False, axis="x")
        axes.set_title(f"{worst.label}, layer {worst.layer}: largest |x| of each hidden dimension")
        axes.set_xlabel("hidden dimension")
    return Plot(
        svg=drawing.svg,
        alt=(
            f"{worst.label} of layer {worst.layer}, largest absolute value of each of {len(largest_D)} hidden dimensions:"
            f" up to {figure(top)} in dimension {int(largest_D.argmax())}, median {figure(median)}."
        ),
        caption=(
            f"The tensor with the largest value. A per-tensor scale must cover {figure(top)}, although the median"
            f" dimension never exceeds {figure(median)}."
        ),
        evidence="measured",
        wide=True,
    )
