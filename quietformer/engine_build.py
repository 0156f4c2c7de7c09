"""Engines from what a user writes: compute capabilities such as ``8.9`` and shapes such as ``1x128``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from deploy.backends.artifact import input_shapes
from deploy.backends.engine_builder import build_engine
from deploy.backends.engine_contents import graph_contents
from deploy.backends.engine_report import ENGINE_FILE, REPORT_FILE, EngineReport
from deploy.backends.engine_settings import EngineSettings
from deploy.backends.engine_targets import building_device, engine_targets, has_float8_units, no_float8
from deploy.backends.tensorrt_dialect import load_dialect
from deploy.calibration.calibration_cache import CalibrationCache
from deploy.files import refuse_existing
from deploy.graphs.graph_info import METADATA_KEY, GraphInfo
from deploy.graphs.graph_structure import read_structure
from deploy.graphs.shapes import parse_shapes
from deploy.quantization.float8 import LOWEST_OPSET
from deploy.quantization.quantize import quantize
from quietformer.progress import Job, say

_USUAL_LENGTH, _GREATEST_LENGTH, _GREATEST_BATCH = 128, 512, 8
_USUAL_BATCHES = ("1", "1", str(_GREATEST_BATCH))
INT8_FOLDER, FLOAT8_FOLDER = "int8", "fp8"
_FORMS = {INT8_FOLDER: "tensorrt", FLOAT8_FOLDER: "fp8"}
"""Profile by folder."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineWishes:
    """What a user asked of an engine."""

    backend: str = "tensorrt-rtx"
    compute_capabilities: Sequence[str] | None = None
    """Each as ``MAJOR.MINOR``; None for the usual ones."""
    smallest: str | None = None
    """Least shapes, for all inputs or per input; by default 1x1, or 1 where only the batch is free."""
    usual: str | None = None
    """Shapes to be fastest at; by default 1x128 (or as long as the model has positions), or 1."""
    largest: str | None = None
    """Greatest shapes; by default 8x512 (or as long as the model has positions), or 8."""
    settings: EngineSettings | None = None


def build_from_texts(graph: Path, out: Path, wishes: EngineWishes, *, force: bool, job: Job) -> EngineReport:
    """Build an engine.

    Args:
        graph: ONNX graph, float or of profile ``tensorrt`` or ``fp8``.
        out: folder for the engine and ``engine.json``.
        wishes: what it is to be like.
        force: replace an earlier engine.
        job: told what is done.

    Raises:
        FileNotFoundError: no such graph.
        FileExistsError: an engine is there and ``force`` is not set.
        ImportError: the library is missing.
        ValueError: a text of another form, or what the builder refuses.
    """
    structure = read_structure(graph)
    sizes = input_shapes(structure)
    usual_range = _usual_range(structure, name=str(graph))
    check_capabilities(wishes.compute_capabilities or (), backend=wishes.backend)
    return build_engine(
        graph,
        out,
        backend=wishes.backend,
        compute_capabilities=wishes.compute_capabilities,
        min_shapes=parse_shapes(wishes.smallest or usual_range[0], sizes),
        opt_shapes=parse_shapes(wishes.usual or usual_range[1], sizes),
        max_shapes=parse_shapes(wishes.largest or usual_range[2], sizes),
        settings=wishes.settings,
        force=force,
        progress=job.tell,
        steps=job.advance,
    )


def _usual_range(structure: onnx.ModelProto, *, name: str) -> tuple[str, str, str]:
    """Least, usual and greatest shapes where the user names none: no longer than the graph's positions."""
    if all(isinstance(size, int) for shape in input_shapes(structure).values() for size in shape[1:]):
        return _USUAL_BATCHES
    lengths = [_USUAL_LENGTH, _GREATEST_LENGTH]
    if any(entry.key == METADATA_KEY for entry in structure.metadata_props):
        info = GraphInfo.read(structure, name=name)
        if info.reads == "tokens":
            lengths = [min(length, info.max_length) for length in lengths]
    return "1x1", f"1x{lengths[0]}", f"{_GREATEST_BATCH}x{lengths[1]}"


def build_forms(
    graph: Path, calibration: Path, out: Path, wishes: EngineWishes, *, force: bool, job: Job
) -> dict[str, EngineReport]:
    """Build the engine of a float graph and those of its 8-bit forms, to be measured side by side.

    FP8 is built where a target has it; why it is not is told to the job.

    Args:
        graph: float graph; in float16 for a comparison that is fair on a GPU.
        calibration: cache of its float32 form.
        out: gets a folder for each engine, and the quantized graphs.
        wishes: what all are to be like.
        force: replace earlier engines.
        job: told what is done.

    Returns:
        Reports by folder name: the float type, then ``int8``, then ``fp8``.

    Raises:
        FileNotFoundError: no such graph or cache.
        FileExistsError: something is there and ``force`` is not set.
        ValueError: the cache is of another graph, the graph is quantized, or what the builder refuses.
    """
    structure = read_structure(graph)
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
        quantize(graph, cache, graphs[folder], profile=profile, force=force)
    reports = {float_folder: build_from_texts(graph, out / float_folder, wishes, force=force, job=job)}
    for folder in forms:
        own = wishes if folder != FLOAT8_FOLDER else replace(wishes, compute_capabilities=_float8_targets(wishes))
        reports[folder] = build_from_texts(graphs[folder], out / folder, own, force=force, job=job)
    return reports


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


def check_capabilities(texts: Sequence[str], *, backend: str) -> None:
    """Refuse targets before any work.

    Raises:
        ImportError: the library is missing.
        ValueError: a text of another form than ``8.9``, or the library does not build for that target.
    """
    dialect = load_dialect(backend)
    for text in texts:
        major, dot, minor = text.partition(".")
        if not (dot and major.isdecimal() and minor.isdecimal()):
            raise ValueError(f"compute capability '{text}' is not MAJOR.MINOR, for example 8.9")
        if dialect.takes_targets:
            dialect.target(text)
