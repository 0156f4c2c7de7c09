"""The large figures on top of the page."""

from __future__ import annotations

from dataclasses import dataclass

from deploy.measuring.compare import Evidence
from quietformer.report.content import RunReport
from quietformer.report.number_text import change, figure, megabytes, milliseconds, score, times
from quietformer.report.outlier_content import outlier_totals
from quietformer.report.pairing import fastest_quantized, headline_pair


@dataclass(frozen=True, kw_only=True, slots=True)
class Highlight:
    """One large figure with its name and what it means."""

    title: str
    value: str
    note: str
    evidence: Evidence


def highlights(report: RunReport) -> list[Highlight]:
    """At most four, those that were measured."""
    return [entry for entry in (_accuracy(report), _outliers(report), _latency(report), _size(report)) if entry]


def _accuracy(report: RunReport) -> Highlight | None:
    pair = headline_pair(report)
    if pair is None:
        return None
    metric, sign = report.comparisons[0].metric, 1 if report.comparisons[0].higher_is_better else -1
    against = f", {change(-sign * pair.before.drop, metric=metric)} before" if pair.before else ""
    return Highlight(
        title=f"{metric} in {pair.after.precision}",
        value=score(pair.after.scores[pair.after.served], metric=metric),
        note=f"{change(-sign * pair.after.drop, metric=metric)} against float{against}",
        evidence=pair.after.evidence,
    )


def _outliers(report: RunReport) -> Highlight | None:
    chosen = report.chosen_arm
    if not (report.outliers_before and chosen and chosen.outliers):
        return None
    before, after = outlier_totals(report.outliers_before), outlier_totals(chosen.outliers)
    old, new = before.largest_ffn or before.largest, after.largest_ffn or after.largest
    if old < new or new == 0:
        return None
    return Highlight(
        title="Smaller outliers",
        value=times(old / new),
        note=f"largest FFN output {figure(old)} → {figure(new)}",
        evidence="measured",
    )


def _latency(report: RunReport) -> Highlight | None:
    latency = report.latency[0] if report.latency else None
    fastest = fastest_quantized(latency) if latency else None
    if latency is None or fastest is None or fastest.speed_up is None:
        return None
    return Highlight(
        title=f"Faster than {latency.baseline}",
        value=times(fastest.speed_up.ratio),
        note=f"{milliseconds(fastest.latency_ms.median)}, {latency.title}",
        evidence="measured",
    )


def _size(report: RunReport) -> Highlight | None:
    floats = [artifact.num_bytes for artifact in report.artifacts if artifact.role == "float graph"]
    quantized = [artifact.num_bytes for artifact in report.artifacts if artifact.role == "int8 graph"]
    if not floats or not quantized:
        return None
    return Highlight(
        title="Smaller on disk",
        value=times(floats[0] / min(quantized)),
        note=f"{megabytes(floats[0])} → {megabytes(min(quantized))}",
        evidence="measured",
    )
