"""Outliers before and after: per layer and kind of tensor, and per hidden dimension where they were worst."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from quietformer.report.figures.plot import Plot
from quietformer.report.number_text import figure, tick
from quietformer.report.outlier_content import TensorView, by_layer, tensor_views
from quietformer.report.plots import AFTER, BEFORE, MUTED, WIDE, canvas, log_ticks


def outlier_plots(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Plot]:
    """One panel per kind of layer tensor that both models have, then the worst tensor by hidden dimension."""
    old, new = tensor_views(before), tensor_views(after)
    old_series, new_series = by_layer(old), by_layer(new)
    shared = [label for label in old_series if label in new_series]
    values = [value for label in shared for value in old_series[label][1] + new_series[label][1] if value > 0]
    if not values:
        return []
    limits = (min(values) / 1.6, max(values) * 1.6)
    plots = [_per_layer(label, old_series[label], new_series[label], limits) for label in shared]
    return [*plots, *_per_dimension(old, {view.name: view for view in new})]


def _per_layer(
    label: str, old: tuple[list[int], list[float]], new: tuple[list[int], list[float]], limits: tuple[float, float]
) -> Plot:
    with canvas(f"layers-{label.lower().replace(' ', '-')}") as drawing:
        axes = drawing.axes
        # Where the curves end close together, the names move apart.
        apart = 0 if abs(np.log(old[1][-1] / new[1][-1])) > np.log(limits[1] / limits[0]) / 12 else 6
        upper = 1 if old[1][-1] >= new[1][-1] else -1
        for (layers, values), color, name, shift in (
            (old, BEFORE, "before", upper * apart),
            (new, AFTER, "after", -upper * apart),
        ):
            axes.plot(layers, values, color=color, marker="o", markersize=5)
            end = (layers[-1], values[-1])
            axes.annotate(name, end, (7, shift), textcoords="offset points", va="center", color=color, fontsize=9)
        axes.set_yscale("log")
        axes.set_ylim(*limits)
        axes.set_xlim(min(old[0]) - 0.3, max(old[0]) + 0.2 * max(4, len(old[0])))
        axes.set_xticks(old[0] if len(old[0]) <= 12 else old[0][::2])
        ticks = log_ticks(*limits)
        axes.set_yticks(ticks, [tick(value) for value in ticks])
        axes.minorticks_off()
        axes.grid(visible=False, axis="x")
        axes.set_title(label)
        axes.set_xlabel("layer")
    worst_old, worst_new = max(old[1]), max(new[1])
    return Plot(
        svg=drawing.svg,
        alt=f"{label}: largest absolute value per layer, at most {figure(worst_old)} before, {figure(worst_new)} after.",
        caption=f"Largest |x| per layer: at most {figure(worst_old)} before, {figure(worst_new)} after.",
        evidence="measured",
    )


def _per_dimension(old: tuple[TensorView, ...], new: Mapping[str, TensorView]) -> list[Plot]:
    shared = [view for view in old if view.name in new and view.layer is not None]
    if not shared:
        return []
    worst = max(shared, key=lambda view: view.largest)
    old_D = np.asarray(worst.largest_by_feature)
    new_D = np.asarray(new[worst.name].largest_by_feature)
    peaks = [int(peak) for peak in np.argsort(old_D)[::-1][:3] if old_D[peak] > 0.25 * old_D.max()]
    with canvas("dimensions", width=WIDE, height=3.0) as drawing:
        axes = drawing.axes
        dimensions_D = np.arange(len(old_D))
        axes.vlines(dimensions_D, 0, old_D, color=BEFORE, linewidth=1.4)
        axes.vlines(dimensions_D, 0, new_D, color=AFTER, linewidth=1.4)
        for peak in peaks:
            axes.annotate(
                f"{peak}", (peak, old_D[peak]), (4, -2), textcoords="offset points", color=MUTED, fontsize=9, va="top"
            )
        axes.set_xlim(-len(old_D) * 0.01, len(old_D) * 1.01)
        axes.set_ylim(0, float(max(old_D.max(), new_D.max())) * 1.08)
        axes.grid(visible=False, axis="x")
        axes.set_title(f"{worst.label}, layer {worst.layer}: largest |x| of each hidden dimension")
        axes.set_xlabel("hidden dimension")
    return [
        Plot(
            svg=drawing.svg,
            alt=(
                f"{worst.label} of layer {worst.layer}, largest absolute value of each of {len(old_D)} hidden dimensions:"
                f" before up to {figure(old_D.max())} in dimension {int(old_D.argmax())}, median"
                f" {figure(float(np.median(old_D)))}; after up to {figure(new_D.max())}."
            ),
            caption=(
                f"The tensor with the largest value before. A per-tensor scale must cover {figure(old_D.max())},"
                f" although the median dimension never exceeds {figure(float(np.median(old_D)))}."
                f" Afterwards it covers {figure(new_D.max())}."
            ),
            evidence="measured",
            wide=True,
        )
    ]
