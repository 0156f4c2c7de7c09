"""Builds the report of a run from the files its stages left, and from nothing else: a report can be made again any time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from deploy.backends.artifact_facts import is_engine
from deploy.backends.engine_report import REPORT_FILE
from deploy.calibration.calibration_cache import CalibrationCache
from deploy.graphs.graph_info import read_info
from deploy.graphs.graph_structure import read_outline, stored_bytes
from deploy.machine import machine_facts
from deploy.measuring.bench_report import BenchReport
from deploy.measuring.compare import CompareReport
from deploy.quantization.site_selection import RecordedChoice
from deploy.quantization.switch_decision import SwitchDecision
from quietformer.manifest import Manifest
from quietformer.model_facts import model_facts, now
from quietformer.recipe.arm_name import arm_name
from quietformer.recipe.original_checkpoint import original_folder
from quietformer.recipe.sections import Section
from quietformer.report.content import (
    Arm,
    ArtifactFacts,
    EngineFacts,
    ExportFacts,
    ModelFacts,
    ParityRow,
    RunReport,
    SiteRange,
)
from quietformer.report.training_history import read_history
from quietformer.stages.layout import (
    CHECKPOINT,
    COMPARISON,
    LATENCY,
    LINT,
    RETROFIT_LOG,
    RETROFIT_RESULT,
    TRAIN_LOG,
    TRAIN_RESULT,
    Variant,
    baseline,
    calibration_cache,
    engine,
    engine_profiles,
    export_facts,
    float16_graph,
    float16_profiles,
    float16_quantized_graph,
    float_engine,
    float_graph,
    int8_graph,
    made,
    outliers,
    variants,
)
from quietformer.stages.stage import Run


def gather_report(run: Run) -> RunReport:
    """Everything that the stages of a run left behind.

    Raises:
        FileNotFoundError: a stage that every run has left nothing.
        ValueError: a file does not hold what its stage writes.
    """
    recipe = run.recipe
    cache = CalibrationCache.load(run.path(calibration_cache(made(recipe), recipe, recipe.calibrate.seeds[0])))
    return RunReport(
        model=_model(run),
        created=now(),
        machine=machine_facts(),
        arms=(gather_arm(run),),
        outliers_before=_json(run.path(outliers("original"))) if baseline(recipe) != made(recipe) else None,
        comparisons=gather_comparisons(run),
        latency=tuple(TypeAdapter(list[BenchReport]).validate_python(_json(run.path(LATENCY)))),
        ranges_before=_ranges(run, "original") if baseline(recipe) != made(recipe) else (),
        ranges_after=_ranges(run, made(recipe)),
        calibration=_calibration(cache),
        export=_export(run),
        artifacts=_artifacts(run),
        engines=_engines(run),
        switch_decisions=_switch_decisions(run),
        notes=(*_lint_notes(run), *cache.warnings()),
        recipe=recipe.values(),
    )


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _model(run: Run) -> ModelFacts:
    """The original, or what was trained from scratch."""
    if run.recipe.model.checkpoint is not None:
        return model_facts(original_folder(run.recipe), source=run.recipe.model.checkpoint)
    return model_facts(run.path(CHECKPOINT), source=run.recipe.name)


def gather_arm(run: Run) -> Arm:
    """How the run's model was trained, and what came out."""
    train = run.recipe.train
    settings: Section
    if train is None:
        result, log, settings = _json(run.path(RETROFIT_RESULT)), RETROFIT_LOG, run.recipe.retrofit
        score = "simulated"
    else:
        result, log, settings = _json(run.path(TRAIN_RESULT))[0], TRAIN_LOG, train
        score = "score"
    return Arm(
        name=arm_name(run.recipe),
        chosen=True,
        attention=run.recipe.attention.settings().to_dict(),
        steps=result["steps"],
        seconds=result["seconds"],
        settings=settings.model_dump(mode="json"),
        history=read_history(run.path(log), score=score),
        outliers=_json(run.path(outliers(made(run.recipe)))),
    )


def gather_comparisons(run: Run) -> tuple[CompareReport, ...]:
    """What the run compared, task by task."""
    path = run.path(COMPARISON)
    if not path.is_file():
        return ()
    reports = _json(path)
    for report in reports.values():
        del report["passed"]  # derived from the rows
    return tuple(TypeAdapter(dict[str, CompareReport]).validate_python(reports).values())


def _ranges(run: Run, variant: Variant) -> tuple[SiteRange, ...]:
    """Ranges as the uint8 profiles read them: from the smallest to the largest value that the method keeps."""
    recipe = run.recipe
    cache = CalibrationCache.load(run.path(calibration_cache(variant, recipe, recipe.calibrate.seeds[0])))
    ranges = []
    for name in cache.tensors:
        low, high = cache.chosen_range(name, symmetric=False)
        ranges.append(SiteRange(site=name, low=low, high=high))
    return tuple(ranges)


def _calibration(cache: CalibrationCache) -> dict[str, Any]:
    return {
        "method": cache.method,
        "samples": cache.samples,
        "batches": cache.batches,
        "data": {key: value for key, value in cache.data.items() if key != "indices"},
        "preprocessing": cache.preprocessing,
    }


def _export(run: Run) -> ExportFacts:
    """The export ended well, so the graph has only standard operators and one attention pattern per layer."""
    facts = _json(run.path(export_facts(made(run.recipe))))
    return ExportFacts(
        opset=facts["opset"],
        lowering=run.recipe.export.lowering,
        only_standard_operators=True,
        attention_patterns=read_info(run.path(float_graph(made(run.recipe)))).num_layers,
        parity=tuple(
            ParityRow(batch=row["batch"], length=row["length"], largest_difference=row["max_difference"])
            for row in facts["parity"]
        ),
    )


def _artifacts(run: Run) -> tuple[ArtifactFacts, ...]:
    """Graphs and ranges of both models with their hashes from the manifest, and the checkpoint's weights."""
    recipe = run.recipe
    hashes = {
        name: sha for record in Manifest.load(run.folder).stages.values() for name, sha in record.artifacts.items()
    }
    found: list[tuple[Any, str, str]] = [
        ("checkpoint", name, made(recipe))
        for name in hashes
        if name.startswith(CHECKPOINT) and name.endswith("tensors")
    ]
    for variant in variants(recipe):
        found.append(("float graph", float_graph(variant), variant))
        if recipe.export.float16:
            found.append(("float16 graph", float16_graph(variant), variant))
        found += [
            (
                f"{_graph_role(profile)} in float16",
                float16_quantized_graph(variant, profile),
                f"{variant}, profile {profile}",
            )
            for profile in float16_profiles(recipe)
        ]
        found.append(("calibration", calibration_cache(variant, recipe, recipe.calibrate.seeds[0]), variant))
        found += [
            (_graph_role(profile), int8_graph(variant, recipe, profile), f"{variant}, profile {profile}")
            for profile in recipe.quantize.profiles
        ]
    return tuple(
        ArtifactFacts(role=role, file=name, num_bytes=_num_bytes(run.path(name)), sha256=hashes[name], note=note)
        for role, name, note in found
    )


def _graph_role(profile: str) -> str:
    return "fp8 graph" if profile == "fp8" else "int8 graph"


def _num_bytes(path: Path) -> int:
    """Of a file; of a graph with the files that hold its weights."""
    return stored_bytes(path) if path.suffix == ".onnx" else path.stat().st_size


def _engines(run: Run) -> tuple[EngineFacts, ...]:
    has_run = run.recipe.runs_engines
    folders = [
        folder
        for variant in variants(run.recipe)
        for folder in (float_engine(variant), *(engine(variant, profile) for profile in engine_profiles(run.recipe)))
    ]
    found = [_json(run.path(folder) / REPORT_FILE) for folder in folders if is_engine(run.path(folder))]
    return tuple(
        EngineFacts(
            backend=facts["backend"],
            num_bytes=facts["engine_bytes"],
            compute_capabilities=tuple(facts["compute_capabilities"]),
            version=facts["version"],
            evidence="measured" if has_run else "unverified",
            note=facts["precision"] if has_run else facts["not_done"],
            facts=facts,
        )
        for facts in found
    )


def _switch_decisions(run: Run) -> dict[str, SwitchDecision]:
    graphs = [
        int8_graph(variant, run.recipe, profile)
        for variant in variants(run.recipe)
        for profile in run.recipe.quantize.profiles
        if run.recipe.quantize.choice(profile).open_switches
    ]
    read = {graph: RecordedChoice.read(read_outline(run.path(graph))).decision for graph in graphs}
    return {graph: decision for graph, decision in read.items() if decision is not None}


def _lint_notes(run: Run) -> list[str]:
    findings = _json(run.path(LINT))
    return [f"lint, profile {profile}: {len(found)} findings" for profile, found in findings.items() if found]
