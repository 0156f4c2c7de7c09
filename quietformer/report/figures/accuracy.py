"""Loss of accuracy against the float original, by profile, backend and model."""

from __future__ import annotations

from deploy.measuring.compare import CompareReport
from quietformer.report.figures.plot import Plot
from quietformer.report.number_text import score, score_with_std
from quietformer.report.plots import AFTER, BEFORE, INK, MUTED, WIDE, canvas


def accuracy_plots(comparison: CompareReport, *, chosen: str | None) -> list[Plot]:
    """Bars from zero (no loss) per quantized row, with the deviation over calibration subsets as a whisker."""
    rows = [row for row in comparison.rows[1:] if row.profile is not None]
    if not rows:
        return []
    sign = 1.0 if comparison.higher_is_better else -1.0
    losses = [sign * (comparison.baseline.mean - row.mean) for row in rows]
    allowed = [row.max_drop for row in rows if row.max_drop is not None]
    reach = max([abs(loss) + row.std for loss, row in zip(losses, rows, strict=True)] + allowed)
    reach = reach or 1e-4
    metric = comparison.metric
    colors = {comparison.baseline.arm: BEFORE if chosen else AFTER} | ({chosen: AFTER} if chosen else {})
    with canvas(f"accuracy-{comparison.task}", width=WIDE, height=0.9 + 0.42 * len(rows)) as drawing:
        axes = drawing.axes
        for place, (row, loss) in enumerate(zip(rows, losses, strict=True)):
            color = colors.get(row.arm, MUTED)
            simulated = row.evidence != "measured"
            axes.barh(
                place,
                loss,
                height=0.6,
                color="none" if simulated else color,
                edgecolor=color,
                linestyle="--" if simulated else "-",
            )
            if len(row.scores) > 1:
                axes.errorbar(loss, place, xerr=row.std, color=INK, capsize=3, elinewidth=1.2)
            if row.max_drop is not None:
                axes.vlines(row.max_drop, place - 0.42, place + 0.42, color=INK, linewidth=1.2, linestyle=":")
            axes.annotate(
                score_with_std(row.mean, row.std, len(row.scores), metric=metric),
                (max(max(loss, 0.0) + row.std, row.max_drop or 0.0), place),
                (6, 0),
                textcoords="offset points",
                va="center",
                fontsize=9,
            )
        axes.axvline(0, color=MUTED, linewidth=1.0)
        axes.set_xlim(min(0.0, *losses) - 0.04 * reach, reach * 1.28)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_yticks(range(len(rows)), [_label(row.arm, row.profile, row.backend) for row in rows])
        axes.grid(visible=False, axis="y")
        axes.spines["left"].set_visible(False)
        axes.set_title(
            f"Loss of {metric} against the float original ({score(comparison.baseline.mean, metric=metric)})"
        )
    listed = "; ".join(f"{_label(row.arm, row.profile, row.backend)} {score(row.mean, metric=metric)}" for row in rows)
    caption = "Shorter is better; labels give the score itself."
    if allowed:
        caption += " Dotted: the loss that its gate allows."
    if any(len(row.scores) > 1 for row in rows):
        caption += " Whiskers: standard deviation over calibration subsets."
    if any(row.evidence == "simulated" for row in rows):
        caption += " Dashed outline: simulated in float."
    return [
        Plot(
            svg=drawing.svg,
            alt=f"{metric} of the quantized models, float original {score(comparison.baseline.mean, metric=metric)}: {listed}.",
            caption=caption,
            evidence="measured" if any(row.evidence == "measured" for row in rows) else "simulated",
            wide=True,
        )
    ]


def _label(arm: str, profile: str | None, backend: str) -> str:
    return f"{arm}, {profile}, {backend}"
