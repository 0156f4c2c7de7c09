"""Engines from what a user writes: compute capabilities such as ``8.9`` and shapes such as ``1x128``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from deploy.backends.artifact import input_shapes
from deploy.backends.cuda_devices import cuda_devices
from deploy.backends.engine_builder import build_engine
from deploy.backends.engine_report import EngineReport
from deploy.backends.engine_settings import EngineSettings
from deploy.backends.tensorrt_dialect import load_dialect
from deploy.graphs.graph_info import METADATA_KEY, GraphInfo
from deploy.graphs.graph_structure import read_outline
from deploy.graphs.shapes import parse_shapes
from quietformer.progress import Job

_USUAL_LENGTH, _GREATEST_LENGTH, _GREATEST_BATCH = 128, 512, 8
_USUAL_BATCHES = ("1", "1", str(_GREATEST_BATCH))


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
    structure = read_outline(graph)
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


def targets_here(backend: str) -> Sequence[str] | None:
    """Targets of an engine that is to run on the GPU at hand; None for TensorRT, which builds for it anyway."""
    return None if backend == "tensorrt" else [cuda_devices()[0][0].compute_capability]


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
