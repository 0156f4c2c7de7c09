"""Engines of one float graph side by side: in its own type, in INT8 and, where a GPU has it, in FP8."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import onnx

from deploy.backends.engine_contents import graph_contents
from deploy.backends.engine_report import ENGINE_FILE, REPORT_FILE, EngineReport
from deploy.backends.engine_targets import building_device, engine_targets, has_float8_units, no_float8
from deploy.backends.tensorrt_dialect import load_dialect
from deploy.calibration.calibration_cache import CalibrationCache
from deploy.files import refuse_existing
from deploy.graphs.graph_structure import read_outline
from deploy.graphs.site_choice import SiteChoice
from deploy.quantization.float8 import LOWEST_OPSET
from deploy.quantization.quantize import quantize
from quietformer.engine_build import EngineWishes, build_from_texts
from quietformer.progress import Job, say
from quietformer.switch_timing import TimedOn, check_auto, decide_switches

INT8_FOLDER, FLOAT8_FOLDER = "int8", "fp8"
_FORMS = {INT8_FOLDER: "tensorrt", FLOAT8_FOLDER: "fp8"}
"""Profile by folder."""


def build_forms(
    graph: Path,
    calibration: Path,
    out: Path,
    wishes: EngineWishes,
    *,
    choice: SiteChoice | None = None,
    seconds: float = 1.0,
    force: bool,
    job: Job,
) -> dict[str, EngineReport]:
    """Build the engine of a float graph and those of its 8-bit forms, to be measured side by side.

    FP8 is built where a target has it; why it is not is told to the job.

    Args:
        graph: float graph; in float16 for a comparison that is fair on a GPU.
        calibration: cache of its float32 form.
        out: gets a folder for each engine, and the quantized graphs.
        wishes: what all are to be like.
        choice: what is changed about the sites of the 8-bit forms; a switch that is ``auto`` is decided on the GPU at hand.
        seconds: of a switch that is ``auto``, time per combination and repeat.
        force: replace earlier engines.
        job: told what is done.

    Returns:
        Reports by folder name: the float type, then ``int8``, then ``fp8``.

    Raises:
        FileNotFoundError: no such graph or cache.
        FileExistsError: something is there and ``force`` is not set.
        ValueError: the cache is of another graph, the graph is quantized, a switch is ``auto`` and there is no device, or
            what the builder refuses.
    """
    choice = choice or SiteChoice()
    check_auto(choice, profile=_FORMS[INT8_FOLDER], backend=wishes.backend)
    structure = read_outline(graph)
    if any(node.op_type == "QuantizeLinear" for node in structure.graph.node):
        raise ValueError(f"{graph} is quantized; --calibration quantizes a float graph")
    forms = dict(_FORMS)
    if (reason := reason_without_float8(structure, wishes)) is not None:
        del forms[FLOAT8_FOLDER]
        say(f"build: no FP8 engine: {reason}")
    float_folder = graph_contents(structure).precision
    for folder in (float_folder, *forms):
        for name in (ENGINE_FILE, REPORT_FILE):
            refuse_existing(out / folder / name, force=force)
    cache = CalibrationCache.load(calibration)
    graphs = {float_folder: graph}
    for folder, profile in forms.items():
        graphs[folder] = out / folder / f"model.{folder}.onnx"
        graphs[folder].parent.mkdir(parents=True, exist_ok=True)
        decided, decision = choice, None
        if choice.open_switches:
            make = partial(_quantized, graph, cache, profile)
            decision = decide_switches(
                graph, choice, make, TimedOn(engines=wishes, seconds=seconds), scratch=graphs[folder].parent, job=job
            )
            decided = choice.decided(decision.switches)
            say(f"build: {folder}: {decision.summary()}")
        quantize(graph, cache, graphs[folder], profile=profile, choice=decided, decision=decision, force=force)
    reports = {float_folder: build_from_texts(graph, out / float_folder, wishes, force=force, job=job)}
    for folder in forms:
        own = wishes if folder != FLOAT8_FOLDER else replace(wishes, compute_capabilities=_float8_targets(wishes))
        reports[folder] = build_from_texts(graphs[folder], out / folder, own, force=force, job=job)
    return reports


def _quantized(graph: Path, cache: CalibrationCache, profile: str, choice: SiteChoice, out: Path) -> None:
    quantize(graph, cache, out, profile=profile, choice=choice)


def reason_without_float8(structure: onnx.ModelProto, wishes: EngineWishes) -> str | None:
    """Why no FP8 engine is built of a float graph; None where one is.

    Raises:
        ImportError: the library is missing.
        ValueError: it builds for a device, and there is none.
    """
    dialect = load_dialect(wishes.backend)
    opset = next(entry.version for entry in structure.opset_import if entry.domain in ("", "ai.onnx"))
    if opset < LOWEST_OPSET:
        return f"it needs opset {LOWEST_OPSET} or newer, and the graph has {opset}"
    if dialect.takes_targets:
        targets: Sequence[str] = engine_targets(dialect, wishes.compute_capabilities)
    else:
        targets = [building_device(dialect).compute_capability]
    return None if any(map(has_float8_units, targets)) else no_float8(targets[0])


def _float8_targets(wishes: EngineWishes) -> Sequence[str] | None:
    """Of the targets that were named, those with FP8; the others get their INT8 engine."""
    if wishes.compute_capabilities is None:
        return None
    return [target for target in wishes.compute_capabilities if has_float8_units(target)]
