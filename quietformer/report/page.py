"""The report as one HTML page that needs nothing else: style, drawings and text in a single file."""

from __future__ import annotations

import json

from quietformer.report.content import RunReport
from quietformer.report.decision_table import decision_table
from quietformer.report.figures.accuracy import accuracy_plots
from quietformer.report.figures.evaluations import evaluation_plots
from quietformer.report.figures.latency import latency_plots
from quietformer.report.figures.outliers import outlier_plots
from quietformer.report.figures.outliers_of_one import outlier_plots_of_one
from quietformer.report.figures.plot import Plot
from quietformer.report.figures.ranges import range_plots
from quietformer.report.figures.training import training_plots
from quietformer.report.highlights import highlights
from quietformer.report.latency_tables import latency_table
from quietformer.report.number_text import figure
from quietformer.report.page_template import Page, Section, model_line, render
from quietformer.report.pairing import compared_arm
from quietformer.report.story import story, verdict
from quietformer.report.tables import (
    accuracy_table,
    arm_table,
    artifact_table,
    engine_table,
    machine_table,
    outlier_table,
    parity_table,
    range_table,
)

OUTLIER_LEAD = "A per-tensor scale must cover the largest value; whatever is large in one dimension costs all others their resolution."


def to_html(report: RunReport) -> str:
    """The page; a part that was not run is left out.

    Raises:
        ImportError: jinja2 or matplotlib is not installed.
    """
    headline = verdict(report)
    return render(
        Page(
            kind="report",
            name=report.model.name,
            facts=model_line(report.model, report.machine),
            created=report.created,
            headline=headline.sentence,
            verdict=headline,
            notes=report.notes,
            highlights=highlights(report),
            story=story(report),
            sections=_sections(report),
            machine=machine_table(report.machine),
            settings=_settings_text(report),
        )
    )


def _sections(report: RunReport) -> list[Section]:
    sections = [
        Section(
            anchor=f"accuracy-{comparison.task}",
            title=f"Accuracy: {comparison.task}",
            lead="Every model saw the same batches. The gate judges the artifact that is served.",
            plots=accuracy_plots(comparison, chosen=compared_arm(report, comparison)),
            table=accuracy_table(comparison),
        )
        for comparison in report.comparisons
    ]
    if (outliers := outlier_table(report)) is not None:
        sections.append(
            Section(
                anchor="outliers",
                title="Outliers",
                lead=OUTLIER_LEAD,
                plots=_outlier_plots(report),
                folded=outliers,
                folded_title="All named tensors",
            )
        )
    if report.ranges_before or report.ranges_after:
        sections.append(
            Section(
                anchor="ranges",
                title="Ranges",
                lead=_calibration_line(report),
                plots=range_plots(report.ranges_before, report.ranges_after),
                folded=range_table(report.ranges_before, report.ranges_after),
                folded_title="All sites",
            )
        )
    sections += [
        Section(
            anchor=latency.slug,
            title=f"Latency: {latency.title}",
            lead=". ".join(latency.verdicts),
            plots=latency_plots(latency),
            table=latency_table(latency),
            warnings=latency.warnings,
        )
        for latency in report.latency
    ]
    if report.arms:
        sections.append(
            Section(
                anchor="training",
                title="Training",
                plots=[*training_plots(report.arms), *_evaluation_plots(report)],
                table=arm_table(report),
            )
        )
    if report.export is not None:
        sections.append(_export_section(report))
    decisions = decision_table(report.switch_decisions)
    if decisions is not None:
        sections.append(Section(anchor="sites", title="Sites decided by timing", table=decisions))
    engines = engine_table(report.engines)
    if engines is not None:
        sections.append(Section(anchor="engines", title="Engines", table=engines))
    files = artifact_table(report.artifacts)
    if files is not None:
        sections.append(Section(anchor="files", title="Files", table=files))
    return sections


def _evaluation_plots(report: RunReport) -> list[Plot]:
    return evaluation_plots(report.chosen_arm) if report.chosen_arm else []


def _outlier_plots(report: RunReport) -> list[Plot]:
    """Before and after, or the one model that there is."""
    after = report.chosen_arm.outliers if report.chosen_arm else None
    if report.outliers_before and after:
        return outlier_plots(report.outliers_before, after)
    alone = report.outliers_before or after
    return outlier_plots_of_one(alone) if alone else []


def _export_section(report: RunReport) -> Section:
    export = report.export
    assert export is not None
    worst = max((row.largest_difference for row in export.parity), default=0.0)
    operators = "only standard operators" if export.only_standard_operators else "operators outside the standard"
    return Section(
        anchor="export",
        title="Export",
        lead=(
            f"Opset {export.opset}, {export.lowering} lowering, {operators}, attention found"
            f" {export.attention_patterns} times in {report.model.num_layers} layers; differs from PyTorch by at most"
            f" {figure(worst)}, at shapes it was not traced at."
        ),
        table=parity_table(export),
    )


def _calibration_line(report: RunReport) -> str:
    """The plain facts; nested ones stand with the recipe at the end of the page."""
    plain = {name: value for name, value in report.calibration.items() if isinstance(value, str | int | float)}
    return f"Calibration: {', '.join(f'{name} {value}' for name, value in plain.items())}." if plain else ""


def _settings_text(report: RunReport) -> str:
    settings = {"recipe": report.recipe, "calibration": report.calibration}
    filled = {name: values for name, values in settings.items() if values}
    return json.dumps(filled, indent=2, sort_keys=True) if filled else ""
