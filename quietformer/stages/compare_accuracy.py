"""Stage ``compare``: every W8A8 graph of both models against the original float model, in integers, on the recipe's tasks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from deploy.backends.opening import open_backend, require_devices
from deploy.files import write_atomically
from deploy.graphs.site_choice import SiteChoice
from deploy.measuring.compare import CompareReport, CompareRow, compare, compare_row
from deploy.quantization.bits import Bits
from deploy.tasks.task import Task
from quietformer.graph_data.calibration import calibration_feeds
from quietformer.manifest import hash_source
from quietformer.progress import Job
from quietformer.recipe.recipe import Recipe
from quietformer.recipe.sections import ClmSection, TaskSection
from quietformer.stages.contenders import contenders
from quietformer.stages.layout import (
    CHECKPOINT,
    COMPARISON,
    baseline,
    calibration_cache,
    engine,
    engine_profiles,
    float_engine,
    float_graph,
    int8_graph,
    made,
    variants,
)
from quietformer.stages.run_data import (
    calibration_plan,
    companions,
    held_out_data,
    held_out_inputs,
    images_source,
    learning_data,
    learning_inputs,
)
from quietformer.stages.stage import Run, Stage

SIMULATED_PROFILE: Final = "paper"
"""Whose integers are checked against a simulation: the one with every site."""


class CompareAccuracy(Stage):
    """Scores of both models, float and W8A8, and verdicts on the retrofitted one."""

    name = "compare"
    title = "accuracy in integers"

    def __init__(self, recipe: Recipe) -> None:
        on = (recipe.backend,) if recipe.runs_engines else ("openvino", "torch")
        self.tools = ("onnxruntime", "tokenizers", *on)

    def settings(self, recipe: Recipe) -> dict[str, Any]:
        """The recipe's table, and how the further subsets are quantized."""
        return {
            "tasks": {name: task.model_dump(mode="json") for name, task in tasks_to_run(recipe).items()},
            "length": recipe.calibrate.length,
            "quantize": recipe.quantize.model_dump(mode="json"),
            "calibrate": recipe.calibrate.model_dump(mode="json"),
        } | ({"backend": recipe.backend} if recipe.runs_engines else {})

    def sources(self, recipe: Recipe) -> dict[str, str]:
        """The tasks' own data; a missing device is told before a run works."""
        require_devices([recipe.backend])
        return {
            f"{name} data": _data_hash(task.data)
            for name, task in tasks_to_run(recipe).items()
            if task.data is not None
        } | images_source(recipe)

    def inputs(self, recipe: Recipe) -> Sequence[str]:
        """Graphs, tokenizers and caches of both models, and the held-out texts."""
        names = [*held_out_inputs(recipe), *learning_inputs(recipe), CHECKPOINT]
        for variant in variants(recipe):
            names += [float_graph(variant), *companions(recipe, variant)]
            names += [int8_graph(variant, recipe, profile) for profile in recipe.quantize.profiles]
            names += [calibration_cache(variant, recipe, seed) for seed in recipe.calibrate.seeds]
            if recipe.runs_engines:
                names += [float_engine(variant), *(engine(variant, profile) for profile in engine_profiles(recipe))]
        return names

    def outputs(self, recipe: Recipe) -> Sequence[str]:
        """One JSON file, a report per task."""
        return (COMPARISON,)

    def reason_to_skip(self, recipe: Recipe) -> str | None:
        """Without a task there is nothing to compare."""
        return None if tasks_to_run(recipe) else "no task has data; give compare.sts.data or a [compare.fidelity] table"

    def work(self, run: Run, job: Job) -> str:
        """Evaluate everything on every task."""
        from quietformer.graph_data.task_opening import open_task, task_named

        reports = {}
        original = run.path(float_graph(baseline(run.recipe)))
        for name, settings in tasks_to_run(run.recipe).items():
            data = settings.data or str(held_out_data(run))
            with open_backend("onnxruntime", original) as float_original:
                task, examples = open_task(
                    task_named(name),
                    original,
                    data,
                    float_infer=float_original.infer,
                    limit=settings.limit,
                    seed=settings.seed,
                    length=None if name == "image" else run.recipe.calibrate.length,
                    window=settings.window if isinstance(settings, ClmSection) else None,
                )
            first, *candidates = contenders(run)
            report = compare(
                first,
                candidates,
                task,
                data=settings.data or ("evaluation images" if name == "image" else "held-out texts"),
                examples=examples,
                progress=job.tell,
            )
            report = replace(report, rows=tuple(_judged(row, report, settings) for row in report.rows))
            if not run.recipe.runs_engines:
                report = report.with_rows(*_simulated_rows(run, task, report, job=job))
            reports[name] = report
        content = {name: report.to_dict() for name, report in reports.items()}
        write_atomically(run.path(COMPARISON), json.dumps(content, indent=1) + "\n")
        failed = sum(row.passed is False for report in reports.values() for row in report.rows)
        return f"{', '.join(reports)}: " + (f"{failed} rows fail their gate" if failed else "no gate failed")


def tasks_to_run(recipe: Recipe) -> dict[str, TaskSection]:
    """The tasks that have data; ``fidelity`` takes the run's own texts and ``image`` its images. The first is the headline of the report."""
    tasks = recipe.compare
    named = {
        "sts": tasks.sts,
        "mlm": tasks.mlm,
        "clm": tasks.clm,
        "classify": tasks.classify,
        "image": tasks.image,
        "fidelity": tasks.fidelity,
    }
    own = {"image" if recipe.data.images is not None else "fidelity"}
    return {name: task for name, task in named.items() if task and (task.data is not None or name in own)}


def _data_hash(data: str) -> str:
    return hash_source(Path(data)) if not data.startswith("hf:") else hashlib.sha256(data.encode()).hexdigest()


def _simulated_rows(run: Run, task: Task, report: CompareReport, *, job: Job) -> Iterator[CompareRow]:
    """The retrofitted model rounded in PyTorch, on the first seed's texts: the integers must agree with it."""
    calibration, weights = run.recipe.calibrate, run.recipe.quantize.weights
    if SIMULATED_PROFILE not in run.recipe.quantize.profiles or weights == "per-channel":
        return
    if calibration.method not in ("minmax", "running-minmax") or calibration.methods:
        return
    if (
        run.recipe.quantize.choice(SIMULATED_PROFILE) != SiteChoice()
        or Bits.parse(run.recipe.quantize.bits).is_simulated
    ):
        return
    from train.simulation.simulated_model import simulated_model

    variant = made(run.recipe)
    job.tell(f"{task.name}: {variant} W8A8 {SIMULATED_PROFILE}, simulated in PyTorch")
    plan = calibration_plan(run.recipe)
    graph = run.path(float_graph(variant))
    batches, _ = calibration_feeds(graph, learning_data(run), plan, seed=calibration.seeds[0])
    with simulated_model(
        run.path(CHECKPOINT), batches, profile=SIMULATED_PROFILE, method=calibration.method, weights=weights
    ) as infer:
        result = task.evaluate(infer)
    yield compare_row(
        [result.score],
        arm=variant,
        backend="pytorch",
        precision="W8A8",
        profile=SIMULATED_PROFILE,
        baseline=report.baseline.scores[report.baseline.served],
        metric=report.metric,
        higher_is_better=report.higher_is_better,
        details=result.details,
        evidence="simulated",
    )


def _judged(row: CompareRow, report: CompareReport, settings: TaskSection) -> CompareRow:
    """The row with the verdict of its profile's gate; the original is only shown."""
    drops = {str(profile): drop for profile, drop in settings.max_drop.items()}
    if row.arm == "original" or row.profile not in drops:
        return row
    return compare_row(
        row.scores,
        arm=row.arm,
        backend=row.backend,
        precision=row.precision,
        profile=row.profile,
        baseline=report.baseline.scores[report.baseline.served],
        metric=report.metric,
        higher_is_better=report.higher_is_better,
        max_drop=drops[row.profile],
        served=row.served,
        details=row.details,
        evidence=row.evidence,
    )
