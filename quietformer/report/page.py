"""The report as one HTML page that needs nothing else: style, drawings and text in a single file.

Only this module imports jinja2.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from deploy.bench import shape_text
from quietformer.report.content import RunReport
from quietformer.report.figures.accuracy import accuracy_plots
from quietformer.report.figures.latency import latency_plots
from quietformer.report.figures.outliers import outlier_plots
from quietformer.report.figures.outliers_of_one import outlier_plots_of_one
from quietformer.report.figures.plot import Plot
from quietformer.report.figures.ranges import range_plots
from quietformer.report.figures.training import training_plots
from quietformer.report.highlights import highlights
from quietformer.report.number_text import figure
from quietformer.report.pairing import compared_arm
from quietformer.report.story import NOTHING, story, verdict
from quietformer.report.tables import (
    Table,
    accuracy_table,
    arm_table,
    artifact_table,
    latency_table,
    machine_table,
    outlier_table,
    parity_table,
    range_table,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """One part of the page; tables that only some readers want are folded."""

    anchor: str
    title: str
    lead: str = ""
    plots: Sequence[Plot] = ()
    table: Table | None = None
    folded: Table | None = None
    folded_title: str = ""
    warnings: Sequence[str] = ()


def to_html(report: RunReport) -> str:
    """The page; a part that was not run is left out.

    Raises:
        ImportError: jinja2 or matplotlib is not installed.
    """
    try:
        import jinja2  # noqa: PLC0415
    except ImportError as error:
        raise ImportError("the HTML report needs jinja2: pip install 'quietformer[report]'") from error
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    folder = resources.files("quietformer.report")
    template = environment.from_string((folder / "page.html.j2").read_text(encoding="utf-8"))
    return template.render(
        report=report,
        style=(folder / "page.css").read_text(encoding="utf-8"),
        verdict=verdict(report),
        highlights=highlights(report),
        story=story(report),
        nothing=NOTHING,
        sections=_sections(report),
        machine=machine_table(report),
        settings=_settings_text(report),
    )


def _sections(report: RunReport) -> list[Section]:
    chosen = report.chosen_arm
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
    if report.outliers_before:
        sections.append(
            Section(
                anchor="outliers",
                title="Outliers",
                lead="A per-tensor scale must cover the largest value; whatever is large in one dimension costs all others their resolution.",
                plots=outlier_plots(report.outliers_before, chosen.outliers)
                if chosen and chosen.outliers
                else outlier_plots_of_one(report.outliers_before),
                folded=outlier_table(report),
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
            anchor=f"latency-{latency.batch_size}-{latency.length}",
            title=f"Latency: {shape_text(latency.batch_size, latency.length)}",
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
                plots=training_plots(report.arms),
                table=arm_table(report),
            )
        )
    if report.export is not None:
        sections.append(_export_section(report))
    files = artifact_table(report.artifacts, report.engines)
    if files is not None:
        sections.append(Section(anchor="files", title="Files", table=files))
    return sections


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
