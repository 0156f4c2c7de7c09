"""The stages of a run in order, the story they tell at its end, and its gates."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from quietformer.gate import GateFailedError
from quietformer.pipeline import run_stages
from quietformer.recipe.recipe import Recipe
from quietformer.report.content import load_report
from quietformer.report.story import story, verdict
from quietformer.report.tables import story_table
from quietformer.stages.build_engine import BuildEngine
from quietformer.stages.calibrate_ranges import CalibrateRanges
from quietformer.stages.compare_accuracy import CompareAccuracy
from quietformer.stages.export_graph import ExportGraph
from quietformer.stages.layout import LINT, variants
from quietformer.stages.lint_graphs import LintGraphs
from quietformer.stages.measure_latency import MeasureLatency
from quietformer.stages.measure_outliers import MeasureOutliers
from quietformer.stages.prepare_data import PrepareData
from quietformer.stages.quantize_graphs import QuantizeGraphs
from quietformer.stages.retrofit_model import RetrofitModel
from quietformer.stages.stage import Stage
from quietformer.stages.train_model import TrainModel
from quietformer.stages.write_report import REPORT_JSON, REPORT_PAGE, WriteReport
from quietformer.terminal_table import terminal_table


def learning_stages(recipe: Recipe) -> tuple[Stage, ...]:
    """Up to the retrofitted or trained checkpoint."""
    if recipe.train is not None:
        return (PrepareData(), TrainModel(), MeasureOutliers("trained"))
    return (PrepareData(), MeasureOutliers("original"), RetrofitModel(), MeasureOutliers("retrofitted"))


def all_stages(recipe: Recipe) -> tuple[Stage, ...]:
    """A whole run."""
    stages: tuple[Stage, ...] = (
        *learning_stages(recipe),
        *(ExportGraph(variant) for variant in variants(recipe)),
        *(CalibrateRanges(variant) for variant in variants(recipe)),
        *(QuantizeGraphs(variant) for variant in variants(recipe)),
        LintGraphs(),
        BuildEngine(recipe),
        CompareAccuracy(recipe),
        MeasureLatency(recipe),
    )
    return (*stages, WriteReport(stages))


def run_recipe(recipe: Recipe, folder: Path, *, force: bool) -> None:
    """Run every stage, print the story and the report's place, then judge.

    Raises:
        GateFailedError: the made model lost more than the recipe allows, or one of its graphs breaks a rule.
        ValueError, OSError, ImportError: see :func:`quietformer.pipeline.run_stages`.
    """
    run_stages(recipe, folder, all_stages(recipe), force=force)
    report = load_report(folder / REPORT_JSON)
    typer.echo(terminal_table(story_table(story(report))))
    for latency in report.latency:
        medians = [f"{timing.name} {timing.latency_ms.median:.2f} ms" for timing in latency.timings]
        typer.echo(f"median at {latency.title}: {', '.join(medians)}")
        for said in latency.verdicts:
            typer.echo(said)
    typer.echo(verdict(report).sentence)
    typer.echo(f"report: {folder / REPORT_PAGE}")
    failures = [
        f"{comparison.task}, profile {row.profile} on {row.backend}, {row.verdict}"
        for comparison in report.comparisons
        for row in comparison.rows
        if row.passed is False
    ]
    findings = json.loads((folder / LINT).read_text(encoding="utf-8"))
    failures += [f"lint, profile {profile}: {found[0]['message']}" for profile, found in findings.items() if found]
    if failures:
        raise GateFailedError("; ".join(failures))
