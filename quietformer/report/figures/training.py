"""Curves of the training arms, the chosen one in front."""

from __future__ import annotations

from collections.abc import Sequence

from quietformer.report.content import Arm
from quietformer.report.figures.plot import Plot
from quietformer.report.number_text import figure, tick
from quietformer.report.plots import SERIES, canvas, log_ticks

_PANELS = (
    ("loss", "Loss", True, "measured"),
    ("distillation", "Distance to the float original", True, "measured"),
    ("penalty", "Outlier penalty", True, "measured"),
    ("largest_activation", "Largest activation", True, "measured"),
    ("simulated", "Score in simulated W8A8", False, "simulated"),
)
"""Key in the history, title, logarithmic or not, where the figures come from."""


def training_plots(arms: Sequence[Arm]) -> list[Plot]:
    """A panel per logged quantity that at least one arm has."""
    ordered = sorted(arms, key=lambda arm: not arm.chosen)
    plots = []
    for key, title, logarithmic, evidence in _PANELS:
        curves = [(arm, _curve(arm, key)) for arm in ordered]
        curves = [(arm, points) for arm, points in curves if len(points) > 1]
        if not curves:
            continue
        positive = all(value > 0 for _, points in curves for _, value in points)
        with canvas(f"training-{key.replace('_', '-')}") as drawing:
            axes = drawing.axes
            for index, (arm, points) in reversed(list(enumerate(curves))):
                steps, values = zip(*points, strict=True)
                sparse = len(points) <= 30
                axes.plot(
                    steps,
                    values,
                    color=SERIES[index % len(SERIES)],
                    marker="o" if sparse else "",
                    markersize=4,
                    label=arm.name,
                )
            if logarithmic and positive:
                axes.set_yscale("log")
                ticks = log_ticks(*axes.get_ylim())
                axes.set_yticks(ticks, [tick(value) for value in ticks])
                axes.minorticks_off()
            axes.set_title(title)
            axes.set_xlabel("step")
            if len(curves) > 1:
                axes.legend(reverse=True)
        last = "; ".join(f"{arm.name} {figure(points[-1][1])}" for arm, points in curves)
        plots.append(
            Plot(
                svg=drawing.svg,
                alt=f"{title} by training step; last values: {last}.",
                caption=f"Last: {last}.",
                evidence="simulated" if evidence == "simulated" else "measured",
            )
        )
    return plots


def _curve(arm: Arm, key: str) -> list[tuple[float, float]]:
    return [(point["step"], point[key]) for point in arm.history if key in point]
