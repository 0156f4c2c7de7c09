"""How large a hidden dimension is against how hard the next softmax pulls on it: one dot per dimension, a panel per layer."""

from __future__ import annotations

from typing import Any

import numpy as np

from quietformer.report.diagnosis_content import Diagnosis
from quietformer.report.figures.plot import Plot
from quietformer.report.number_text import figure, tick
from quietformer.report.plots import AFTER, BEFORE, MUTED, canvas, log_ticks

_NAMED = 3
_FAR_OUT = 3.0
"""Dimensions above so many times the median size are drawn as outliers."""
_MOST_PANELS = 12


def softmax_pull_plots(diagnosis: Diagnosis) -> list[Plot]:
    """At most twelve layers, evenly spread; layers that pull on nothing are left out."""
    if diagnosis.gradients is None:
        return []
    layers = [layer for layer in diagnosis.gradients["layers"] if any(layer["through_softmax"])]
    if len(layers) > _MOST_PANELS:
        chosen = np.linspace(0, len(layers) - 1, _MOST_PANELS).round().astype(int)
        layers = [layers[index] for index in chosen]
    return [_panel(layer) for layer in layers]


def _panel(layer: dict[str, Any]) -> Plot:
    largest_D, pull_D = np.asarray(layer["largest"]), np.asarray(layer["through_softmax"])
    shown_D = (largest_D > 0) & (pull_D > 0)
    relative_D = pull_D / np.median(pull_D[shown_D])
    far_D = shown_D & (largest_D > _FAR_OUT * np.median(largest_D))
    with canvas(f"pull-{layer['layer']}") as drawing:
        axes = drawing.axes
        for chosen_D, color, size in ((shown_D & ~far_D, AFTER, 7), (far_D, BEFORE, 16)):
            axes.scatter(largest_D[chosen_D], relative_D[chosen_D], s=size, color=color, alpha=0.7, linewidths=0)
        for dimension in np.argsort(-largest_D)[:_NAMED]:
            if far_D[dimension]:
                place = (float(largest_D[dimension]), float(relative_D[dimension]))
                axes.annotate(str(dimension), place, (5, 3), textcoords="offset points", color=MUTED, fontsize=9)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.margins(0.14)
        for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            ticks = log_ticks(*limits)
            axis.set_ticks(ticks, [tick(value) for value in ticks])
        axes.minorticks_off()
        axes.set_title(f"Softmax of layer {layer['layer']}")
        axes.set_xlabel(f"largest |x| of {layer['tensor']}")
        axes.set_ylabel("pull")
    correlation, pull = layer["rank_correlation"], layer["pull_on_largest"]
    text = f"The largest dimension is pulled {figure(pull)} times as hard as the median one" if pull else "No pull"
    if correlation is not None:
        text += f"; rank correlation of size and pull {correlation:.2f}".replace("-", "\N{MINUS SIGN}")
    return Plot(svg=drawing.svg, alt=f"Layer {layer['layer']}: {text}.", caption=f"{text}.", evidence="measured")
