"""The report as Markdown, for a terminal, a pull request or a model card."""

from __future__ import annotations

from collections.abc import Sequence

from deploy.measuring.bench_report import BenchReport
from quietformer.report.content import RunReport
from quietformer.report.decision_table import decision_table
from quietformer.report.latency_tables import latency_table
from quietformer.report.number_text import figure
from quietformer.report.story import story, verdict
from quietformer.report.tables import (
    Table,
    accuracy_table,
    arm_table,
    artifact_table,
    engine_table,
    machine_table,
    outlier_table,
    parity_table,
    story_table,
)


def markdown_table(table: Table) -> str:
    """A pipe table with numbers aligned to the right; a pipe inside a cell is escaped."""
    marks = [":--" if column < table.text_columns else "--:" for column in range(len(table.header))]
    lines = [table.header, marks, *table.rows]
    text = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    return f"{text}\n\n{table.caption}" if table.caption else text


def latency_parts(reports: Sequence[BenchReport]) -> list[str]:
    """What was measured as paragraphs: title, table, verdicts and warnings of each report."""
    parts: list[str] = []
    for latency in reports:
        parts += [
            f"## Latency: {latency.title}",
            markdown_table(latency_table(latency)),
            *latency.verdicts,
            *(f"> {warning}" for warning in latency.warnings),
        ]
    return parts


def to_markdown(report: RunReport) -> str:
    """The whole summary; a part that was not run is left out."""
    headline = verdict(report)
    model = report.model
    parts = [
        f"# {model.name}",
        f"**{headline.sentence}** Accuracy gate: {headline.outcome}.",
        f"{model.family}, {model.num_layers} layers of {model.hidden_size}, {model.num_parameters:,} parameters. {report.created}.",
    ]
    parts += [f"> {note}" for note in report.notes]
    if rows := story(report):
        parts.append(markdown_table(story_table(rows)))
    for comparison in report.comparisons:
        parts += [f"## Accuracy: {comparison.task}", markdown_table(accuracy_table(comparison))]
    parts += latency_parts(report.latency)
    sections = (
        ("Training", arm_table(report)),
        ("Outliers", outlier_table(report)),
        ("Sites decided by timing", decision_table(report.switch_decisions)),
        ("Engines", engine_table(report.engines)),
        ("Files", artifact_table(report.artifacts)),
    )
    for title, table in sections:
        if table is not None:
            parts += [f"## {title}", markdown_table(table)]
    if report.export is not None:
        export = report.export
        worst = max((row.largest_difference for row in export.parity), default=0.0)
        parts += [
            "## Export",
            f"Opset {export.opset}, lowering {export.lowering}, largest difference from PyTorch {figure(worst)}.",
            markdown_table(parity_table(export)),
        ]
    parts += ["## Machine", markdown_table(machine_table(report.machine))]
    return "\n\n".join(parts) + "\n"
