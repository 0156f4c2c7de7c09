"""What a training run was measured by while it ran: a panel per figure, with a curve per kind of model or of tensor.

Evaluations name their figures ``float_LOSS`` and ``PROFILE_LOSS`` (``quantized_LOSS`` where there is one profile) for the task, ``max_inf_norm`` and ``average_kurtosis`` for all
named tensors, and ``KIND.max_inf_norm`` for those of one kind.
"""

from __future__ import annotations

from quietformer.report.content import Arm
from quietformer.report.figures.plot import Plot
from quietformer.report.number_text import figure, tick
from quietformer.report.outlier_content import kind_label
from quietformer.report.plots import AFTER, BEFORE, SERIES, canvas, log_ticks

_FLOAT = "float_"
_OUTLIERS = {"max_inf_norm": "Infinity norm", "average_kurtosis": "Kurtosis"}
_KINDS_SHOWN = ("", "attention_output", "ffn_output", "residual_sum.ffn", "ln_output.ffn")
"""Of tensors; the empty one is all of them."""

Curve = list[tuple[float, float]]


def evaluation_plots(arm: Arm) -> list[Plot]:
    """The task's figures in float and in simulated W8A8, then the outlier metrics; what was not measured is left out."""
    curves: dict[str, Curve] = {}
    for point in arm.history:
        for name, value in point.items():
            curves.setdefault(name, []).append((point["step"], value))
    measures = [name.removeprefix(_FLOAT) for name in curves if name.startswith(_FLOAT)]
    plots = [_task_panel(curves, measure) for measure in measures if len(curves[_FLOAT + measure]) > 1]
    return plots + [
        _outlier_panel(curves, name, title)
        for name, title in _OUTLIERS.items()
        if any(len(curves.get(_of_kind(kind, name), ())) > 1 for kind in _KINDS_SHOWN)
    ]


def _task_panel(curves: dict[str, Curve], measure: str) -> Plot:
    quantized = [
        name for name in curves if name.endswith(f"_{measure}") and not name.startswith(_FLOAT) and "." not in name
    ]
    shown = {"float": (curves[_FLOAT + measure], AFTER)}
    others = [BEFORE, *(color for color in SERIES if color not in {AFTER, BEFORE})]
    for color, name in zip(others, quantized, strict=False):
        prefix = name.removesuffix(f"_{measure}")
        shown["W8A8" if prefix == "quantized" else f"W8A8, {prefix}"] = curves[name], color
    # A perplexity falls by orders of magnitude; an accuracy is a share.
    return _panel(
        f"evaluation-{measure}",
        f"Validation {measure.replace('_', ' ')}",
        shown,
        logarithmic=measure in ("loss", "perplexity"),
        simulated=len(shown) > 1,
    )


def _outlier_panel(curves: dict[str, Curve], name: str, title: str) -> Plot:
    shown = {
        kind_label(kind) if kind else "all tensors": (curves[_of_kind(kind, name)], color)
        for kind, color in zip(_KINDS_SHOWN, SERIES, strict=True)
        if len(curves.get(_of_kind(kind, name), ())) > 1
    }
    return _panel(f"evaluation-{name.replace('_', '-')}", title, shown, logarithmic=True, simulated=False)


def _panel(name: str, title: str, shown: dict[str, tuple[Curve, str]], *, logarithmic: bool, simulated: bool) -> Plot:
    with canvas(name) as drawing:
        axes = drawing.axes
        for text, (points, color) in shown.items():
            steps, values = zip(*points, strict=True)
            axes.plot(steps, values, color=color, marker="o" if len(points) <= 30 else "", markersize=4, label=text)
        if logarithmic and all(value > 0 for points, _ in shown.values() for _, value in points):
            axes.set_yscale("log")
            ticks = log_ticks(*axes.get_ylim())
            axes.set_yticks(ticks, [tick(value) for value in ticks])
            axes.minorticks_off()
        axes.set_title(title)
        axes.set_xlabel("step")
        if len(shown) > 1:
            axes.legend()
    last = "; ".join(f"{text} {figure(points[-1][1])}" for text, (points, _) in shown.items())
    return Plot(
        svg=drawing.svg,
        alt=f"{title} by training step; last values: {last}.",
        caption=f"Last: {last}." + (" W8A8 is simulated." if simulated else ""),
        evidence="measured",
    )


def _of_kind(kind: str, name: str) -> str:
    return f"{kind}.{name}" if kind else name
