"""The tables of a report as text, the same in Markdown and HTML."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deploy.machine import MachineFacts
from deploy.measuring.bench_report import shape_text
from deploy.measuring.compare import CompareReport, CompareRow
from quietformer.report.content import Arm, ArtifactFacts, EngineFacts, ExportFacts, RunReport, SiteRange
from quietformer.report.number_text import (
    change,
    figure,
    megabytes,
    score_with_std,
)
from quietformer.report.outlier_content import tensor_views
from quietformer.report.pairing import compared_arm
from quietformer.report.story import NOTHING, StoryRow


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Cells as text; ``text_columns`` says how many of the first columns are words, the rest are numbers."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text_columns: int = 1
    caption: str = ""


def story_table(rows: Sequence[StoryRow]) -> Table:
    """The table that the command line prints as well."""
    return Table(
        header=("", "Original", "quietformer", "Change", "Evidence"),
        rows=tuple((row.what, row.before, row.after, row.change, row.evidence) for row in rows),
    )


def accuracy_table(comparison: CompareReport) -> Table:
    """One row per model, profile and backend; the first is the baseline."""
    metric, sign = comparison.metric, 1 if comparison.higher_is_better else -1
    rows = [
        (
            row.arm,
            row.precision,
            row.profile or NOTHING,
            row.backend,
            row.evidence,
            score_with_std(row.mean, row.std, len(row.scores), metric=metric),
            str(len(row.scores)),
            change(-sign * row.drop, metric=metric) if index and math.isfinite(row.drop) else NOTHING,
            row.verdict.split(":")[0] if row.passed is not None else NOTHING,
        )
        for index, row in enumerate(comparison.rows)
    ]
    return Table(
        header=("Model", "Precision", "Profile", "Backend", "Evidence", metric, "Subsets", "Served vs. float", "Gate"),
        rows=tuple(rows),
        text_columns=5,
        caption=f"Task {comparison.task}, {comparison.num_examples:,} examples"
        + (f", {comparison.data}" if comparison.data else "")
        + (f" ({comparison.examples.in_words()})" if comparison.examples is not None else "")
        + ".",
    )


def outlier_table(report: RunReport) -> Table | None:
    """Every named tensor before and, where an arm was chosen, after; of the one model where there is no other."""
    after = report.chosen_arm.outliers if report.chosen_arm else None
    if report.outliers_before:
        return tensor_table(report.outliers_before, after)
    return tensor_table(after) if after else None


def tensor_table(outliers: Mapping[str, Any], after: Mapping[str, Any] | None = None) -> Table:
    """Every named tensor of a model, beside the same tensor of another one where it is given."""
    others = {view.name: view for view in tensor_views(after)} if after else {}
    rows = []
    for old in tensor_views(outliers):
        cells = [old.name, figure(old.largest), figure(old.inf_norm), _optional(old.kurtosis)]
        if others:
            new = others.get(old.name)
            cells += [figure(new.largest), figure(new.inf_norm), _optional(new.kurtosis)] if new else [NOTHING] * 3
        rows.append(tuple(cells))
    names = ("largest |x|", "infinity norm", "kurtosis")
    header = (
        ("Tensor", *names)
        if not others
        else ("Tensor", *(f"{n}, before" for n in names), *(f"{n}, after" for n in names))
    )
    return Table(
        header=header,
        rows=tuple(rows),
        caption=f"Infinity norm and kurtosis per sequence, averaged over {outliers['num_sequences']:,}"
        " sequences, padding left out.",
    )


def arm_table(report: RunReport) -> Table | None:
    """The training arms side by side."""
    if not report.arms:
        return None
    rows = []
    for arm in report.arms:
        summary = arm.outliers["summary"]["all"] if arm.outliers else {}
        rows.append(
            (
                arm.name + (" (chosen)" if arm.chosen else ""),
                f"{arm.steps:,}",
                f"{arm.seconds / 60:.1f} min",
                _optional(summary.get("largest")),
                _optional(summary.get("average_kurtosis")),
                *_arm_scores(report, arm),
            )
        )
    metric = f"{report.comparisons[0].metric}, " if report.comparisons else ""
    return Table(
        header=("Arm", "Steps", "Time", "Largest |x|", "Kurtosis", f"{metric}float", f"{metric}W8A8"),
        rows=tuple(rows),
    )


def _arm_scores(report: RunReport, arm: Arm) -> tuple[str, str]:
    """Scores of an arm's float and quantized models on the first task; simulated ones only where nothing was measured."""
    if not report.comparisons:
        return NOTHING, NOTHING
    comparison = report.comparisons[0]
    name = compared_arm(report, comparison) if arm.chosen else arm.name
    rows = arm.compared or tuple(row for row in comparison.rows if row.arm == name)
    quantized = [row for row in rows if row.profile is not None]
    scores = []
    for row in [row for row in quantized if row.evidence == "measured"] or quantized:
        mark = "" if row.evidence == "measured" else f", {row.evidence}"
        scores.append(f"{_score(row, comparison)} ({row.profile} on {row.backend}{mark})")
    floats = [_score(row, comparison) for row in rows if row.profile is None]
    return (floats[0] if floats else NOTHING), "; ".join(scores) or NOTHING


def _score(row: CompareRow, comparison: CompareReport) -> str:
    return score_with_std(row.mean, row.std, len(row.scores), metric=comparison.metric)


def range_table(before: Sequence[SiteRange], after: Sequence[SiteRange]) -> Table | None:
    """Calibrated range per site."""
    if not before and not after:
        return None
    old, new = ({entry.site: entry for entry in entries} for entries in (before, after))
    rows = []
    for site in dict.fromkeys([*old, *new]):
        cells = [site]
        for entries in (old, new):
            entry = entries.get(site)
            cells += [figure(entry.low), figure(entry.high)] if entry else [NOTHING, NOTHING]
        rows.append(tuple(cells))
    return Table(header=("Site", "low, before", "high, before", "low, after", "high, after"), rows=tuple(rows))


def parity_table(export: ExportFacts) -> Table:
    """Agreement of the exported graph with PyTorch."""
    return Table(
        header=("Shape", "Largest difference"),
        rows=tuple((shape_text(row.batch, row.length), figure(row.largest_difference)) for row in export.parity),
    )


def artifact_table(artifacts: Sequence[ArtifactFacts]) -> Table | None:
    """Files of the run."""
    rows = [(a.role, a.file, a.note or NOTHING, a.sha256[:12] or NOTHING, megabytes(a.num_bytes)) for a in artifacts]
    if not rows:
        return None
    return Table(header=("Kind", "File", "Note", "sha256", "Size"), rows=tuple(rows), text_columns=4)


def engine_table(engines: Sequence[EngineFacts]) -> Table | None:
    """Engines that were built: for which GPUs, of what, how large, in what time; and targets that the builder refused."""
    rows: list[tuple[str, ...]] = []
    for engine in engines:
        facts = engine.facts
        name = f"{engine.backend} {engine.version}"
        share = f"{facts['eight_bit_share']:.0%}" if "eight_bit_share" in facts else NOTHING
        parsed, built = (
            f"{facts[key]:.1f} s" if key in facts else NOTHING for key in ("parse_seconds", "build_seconds")
        )
        precision = facts.get("precision", NOTHING)
        targets = ", ".join(engine.compute_capabilities)
        rows.append((name, targets, precision, engine.evidence, share, megabytes(engine.num_bytes), parsed, built))
        rows += [
            (name, target, NOTHING, f"not built: {reason}", NOTHING, NOTHING, NOTHING, NOTHING)
            for target, reason in facts.get("left_out", {}).items()
        ]
    if not rows:
        return None
    return Table(
        header=("Engine", "For SM", "Precision", "Evidence", "Weights in 8 bits", "Size", "Parsed in", "Built in"),
        rows=tuple(rows),
        text_columns=4,
        caption=" ".join(dict.fromkeys(engine.note for engine in engines if engine.note)),
    )


def machine_table(machine: MachineFacts) -> Table:
    """Hardware and versions."""
    rows = [
        ("Processor", f"{machine.cpu}, {machine.num_cores} cores"),
        ("Instruction sets", ", ".join(machine.instruction_sets) or NOTHING),
        ("Memory", f"{machine.memory_bytes / 2**30:.1f} GiB" if machine.memory_bytes else NOTHING),
        ("System", machine.system),
        ("Python", machine.python),
        *machine.versions.items(),
    ]
    return Table(header=("Machine", ""), rows=tuple(rows), text_columns=2)


def _optional(value: float | None) -> str:
    return NOTHING if value is None else figure(value)
