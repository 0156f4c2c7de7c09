"""What a report tells first: one sentence, a few large figures, and a table of original against retrofitted.

The command line prints the same table. A line appears only when both the figure and its origin are known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from deploy.measuring.bench_report import BenchReport
from deploy.measuring.compare import CompareReport, CompareRow, Evidence
from quietformer.report.content import ArtifactFacts, RunReport
from quietformer.report.number_text import (
    change,
    duration,
    figure,
    megabytes,
    milliseconds,
    score,
    score_with_std,
    times,
)
from quietformer.report.outlier_content import OutlierTotals, outlier_totals
from quietformer.report.pairing import QuantizedPair, compared_arm, fastest_quantized, headline_pair, quantized_pairs

NOTHING = "\N{EN DASH}"


@dataclass(frozen=True, kw_only=True, slots=True)
class StoryRow:
    """One line: what, before, after, how they differ, and where the figures come from."""

    what: str
    before: str
    after: str
    change: str
    evidence: Evidence
    is_better: bool | None = None
    """None where neither direction is meant."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The headline."""

    sentence: str
    outcome: Literal["passed", "failed", "not gated"]


def verdict(report: RunReport) -> Verdict:
    """The sentence on top, from what was measured."""
    gated = [row for comparison in report.comparisons for row in comparison.rows if row.passed is not None]
    outcome: Literal["passed", "failed", "not gated"] = "not gated"
    if gated:
        outcome = "passed" if all(row.passed for row in gated) else "failed"
    pair = headline_pair(report)
    if pair is None:
        return Verdict(sentence="No accuracy was measured in this run.", outcome=outcome)
    metric = report.comparisons[0].metric
    sentence = f"W8A8 {_costs(pair.after.drop, metric)}"
    if pair.before is not None:
        sentence += f" instead of {score(pair.before.drop, metric=metric)}"
    return Verdict(sentence=f"{sentence} ({pair.where}).", outcome=outcome)


def _costs(drop: float, metric: str) -> str:
    text = score(abs(drop), metric=metric)
    if float(text) == 0:
        return f"costs no {metric}"
    return f"costs {text} {metric}" if drop > 0 else f"gains {text} {metric}"


def story(report: RunReport) -> tuple[StoryRow, ...]:
    """The table of about ten lines."""
    rows: list[StoryRow] = []
    chosen = report.chosen_arm
    if report.outliers_before and chosen and chosen.outliers:
        rows += _outlier_rows(outlier_totals(report.outliers_before), outlier_totals(chosen.outliers))
    for comparison in report.comparisons[:1]:
        rows += _accuracy_rows(comparison, chosen=compared_arm(report, comparison))
    for latency in report.latency[:1]:
        rows += _latency_rows(latency)
    rows += _size_rows(report.artifacts)
    rows += [
        StoryRow(
            what=f"Engine, {engine.backend}",
            before=NOTHING,
            after=megabytes(engine.num_bytes),
            change=f"built for SM {', '.join(engine.compute_capabilities)}",
            evidence=engine.evidence,
        )
        for engine in report.engines
    ]
    if chosen:
        rows.append(
            StoryRow(
                what=f"Training, {chosen.name}",
                before=NOTHING,
                after=f"{chosen.steps:,} steps",
                change=duration(chosen.seconds),
                evidence="measured",
            )
        )
    return tuple(rows)


def _outlier_rows(before: OutlierTotals, after: OutlierTotals) -> list[StoryRow]:
    return [
        StoryRow(
            what=what,
            before=figure(old),
            after=figure(new),
            change=f"{times(old / new)} smaller" if new <= old else f"{times(new / old)} larger",
            evidence="measured",
            is_better=new <= old,
        )
        for what, old, new in (
            ("Largest FFN output", before.largest_ffn, after.largest_ffn),
            ("Average kurtosis", before.kurtosis, after.kurtosis),
        )
        if old and new
    ]


def _accuracy_rows(comparison: CompareReport, *, chosen: str | None) -> list[StoryRow]:
    metric, baseline = comparison.metric, comparison.baseline
    retrofitted = [row for row in comparison.rows[1:] if row.profile is None and row.arm == chosen]
    rows = [_score_row(f"{metric}, {row.precision}", baseline, row, comparison) for row in retrofitted[:1]]
    for pair in _one_per_profile(quantized_pairs(comparison, chosen=chosen)):
        what = f"{metric}, {pair.after.precision}, {pair.where}"
        rows.append(_score_row(what, pair.before if chosen else baseline, pair.after, comparison))
    return rows


def _one_per_profile(pairs: list[QuantizedPair]) -> list[QuantizedPair]:
    """Per profile the first measured pair; a simulated one only where nothing was measured."""
    ordered = sorted(pairs, key=lambda pair: pair.after.evidence != "measured")
    first = {pair.after.profile: pair for pair in reversed(ordered)}
    return [first[profile] for profile in dict.fromkeys(pair.after.profile for pair in pairs)]


def _score_row(what: str, before: CompareRow | None, after: CompareRow, comparison: CompareReport) -> StoryRow:
    """One line; without a counterpart on the original model only the score itself is told."""
    metric = comparison.metric
    difference = after.mean - before.mean if before else 0.0
    return StoryRow(
        what=what,
        before=score_with_std(before.mean, before.std, len(before.scores), metric=metric) if before else NOTHING,
        after=score_with_std(after.mean, after.std, len(after.scores), metric=metric),
        change=change(difference, metric=metric) if before else NOTHING,
        evidence=after.evidence,
        is_better=(difference >= 0) == comparison.higher_is_better if before else None,
    )


def _latency_rows(latency: BenchReport) -> list[StoryRow]:
    baseline = next(timing for timing in latency.timings if timing.name == latency.baseline)
    fastest = fastest_quantized(latency)
    if fastest is None or fastest.speed_up is None:
        return []
    speed_up = fastest.speed_up
    return [
        StoryRow(
            what=(f"Median latency, {latency.title}: {baseline.name} against {fastest.name}"),
            before=milliseconds(baseline.latency_ms.median),
            after=milliseconds(fastest.latency_ms.median),
            change=f"{times(speed_up.ratio)} faster" if speed_up.ratio >= 1 else f"{times(1 / speed_up.ratio)} slower",
            evidence="measured",
            is_better=speed_up.ratio >= 1,
        )
    ]


def _size_rows(artifacts: tuple[ArtifactFacts, ...]) -> list[StoryRow]:
    floats = [artifact for artifact in artifacts if artifact.role == "float graph"]
    quantized = [artifact for artifact in artifacts if artifact.role == "int8 graph"]
    if not floats or not quantized:
        return []
    smallest = min(quantized, key=lambda artifact: artifact.num_bytes)
    ratio = floats[0].num_bytes / smallest.num_bytes
    return [
        StoryRow(
            what="Graph on disk",
            before=megabytes(floats[0].num_bytes),
            after=megabytes(smallest.num_bytes),
            change=f"{times(ratio)} smaller" if ratio >= 1 else f"{times(1 / ratio)} larger",
            evidence="measured",
            is_better=ratio >= 1,
        )
    ]
