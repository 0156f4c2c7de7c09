"""Engines from what a user writes: compute capabilities such as ``8.9`` and shapes such as ``1x128``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.backends.artifact import input_shapes
from deploy.backends.engine_builder import build_engine
from deploy.backends.engine_contents import graph_contents
from deploy.backends.engine_report import ENGINE_FILE, REPORT_FILE, EngineReport
from deploy.backends.engine_settings import EngineSettings
from deploy.backends.tensorrt_dialect import load_dialect
from deploy.calibration.calibration_cache import CalibrationCache
from deploy.files import refuse_existing
from deploy.graphs.graph_structure import read_structure
from deploy.graphs.shapes import parse_shapes
from deploy.quantization.quantize import quantize
from quietformer.progress import Job

_USUAL_SHAPES = ("1x1", "1x128", "8x512")
_USUAL_BATCHES = ("1", "1", "8")
INT8_FOLDER = "int8"
INT8_GRAPH = "model.int8.onnx"


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineWishes:
    """What a user asked of an engine."""

    backend: str = "tensorrt-rtx"
    compute_capabilities: Sequence[str] | None = None
    """Each as ``MAJOR.MINOR``; None for the usual ones."""
    smallest: str | None = None
    """Least shapes, for all inputs or per input; by default 1x1, or 1 where only the batch is free."""
    usual: str | None = None
    """Shapes to be fastest at; by default 1x128, or 1."""
    largest: str | None = None
    """Greatest shapes; by default 8x512, or 8."""
    settings: EngineSettings | None = None


def build_from_texts(graph: Path, out: Path, wishes: EngineWishes, *, force: bool, job: Job) -> EngineReport:
    """Build an engine.

    Args:
        graph: ONNX graph, float or of the ``tensorrt`` profile.
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
    sizes = input_shapes(read_structure(graph))
    only_batch_is_free = all(isinstance(size, int) for shape in sizes.values() for size in shape[1:])
    usual_range = _USUAL_BATCHES if only_batch_is_free else _USUAL_SHAPES
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


def build_pair(
    graph: Path, calibration: Path, out: Path, wishes: EngineWishes, *, force: bool, job: Job
) -> dict[str, EngineReport]:
    """Build the engine of a float graph and that of its integers, to be measured side by side.

    Args:
        graph: float graph; in float16 for a comparison that is fair on a GPU.
        calibration: cache of its float32 form.
        out: gets a folder for each engine, and the quantized graph.
        wishes: what both are to be like.
        force: replace earlier engines.
        job: told what is done.

    Returns:
        Reports by folder name: the float type, then ``int8``.

    Raises:
        FileNotFoundError: no such graph or cache.
        FileExistsError: something is there and ``force`` is not set.
        ValueError: the cache is of another graph, the graph is quantized, or what the builder refuses.
    """
    structure = read_structure(graph)
    if any(node.op_type == "QuantizeLinear" for node in structure.graph.node):
        raise ValueError(f"{graph} is quantized; --calibration quantizes a float graph")
    load_dialect(wishes.backend)
    float_folder = graph_contents(structure).precision
    int8_graph = out / INT8_FOLDER / INT8_GRAPH
    for folder in (float_folder, INT8_FOLDER):
        for name in (ENGINE_FILE, REPORT_FILE):
            refuse_existing(out / folder / name, force=force)
    int8_graph.parent.mkdir(parents=True, exist_ok=True)
    quantize(graph, CalibrationCache.load(calibration), int8_graph, profile="tensorrt", force=force)
    return {
        float_folder: build_from_texts(graph, out / float_folder, wishes, force=force, job=job),
        INT8_FOLDER: build_from_texts(int8_graph, out / INT8_FOLDER, wishes, force=force, job=job),
    }


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
