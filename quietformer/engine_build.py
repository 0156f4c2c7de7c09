"""A TensorRT-RTX build from what a user writes: capabilities such as ``8.9`` and shapes such as ``1x128``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from deploy.backends.artifact import input_shapes
from deploy.backends.rtx_engine import EngineReport, build_engine, find_capability
from deploy.graph_structure import read_structure
from deploy.shapes import parse_shapes
from quietformer.progress import Job

_USUAL_SHAPES = ("1x1", "1x128", "8x512")
_USUAL_BATCHES = ("1", "1", "8")


def build_from_texts(
    graph: Path,
    out: Path,
    *,
    compute_capabilities: Sequence[str],
    smallest: str | None = None,
    usual: str | None = None,
    largest: str | None = None,
    force: bool,
    job: Job,
) -> EngineReport:
    """Build an engine.

    Args:
        graph: ONNX graph of the ``tensorrt`` profile.
        out: folder for the engine and ``engine.json``.
        compute_capabilities: targets, each as ``MAJOR.MINOR``.
        smallest: least shapes, for all inputs or per input; by default 1x1, or 1 where only the batch is free.
        usual: shapes to be fastest at; by default 1x128, or 1.
        largest: greatest shapes; by default 8x512, or 8.
        force: replace an earlier engine.
        job: told what is done.

    Raises:
        FileNotFoundError: no such graph.
        FileExistsError: an engine is there and ``force`` is not set.
        ValueError: a text of another form, or what the builder refuses.
    """
    sizes = input_shapes(read_structure(graph))
    only_batch_is_free = all(isinstance(size, int) for shape in sizes.values() for size in shape[1:])
    usual_range = _USUAL_BATCHES if only_batch_is_free else _USUAL_SHAPES
    return build_engine(
        graph,
        out,
        compute_capabilities=[parse_capability(text) for text in compute_capabilities],
        min_shapes=parse_shapes(smallest or usual_range[0], sizes),
        opt_shapes=parse_shapes(usual or usual_range[1], sizes),
        max_shapes=parse_shapes(largest or usual_range[2], sizes),
        force=force,
        progress=job.tell,
    )


def parse_capability(text: str) -> tuple[int, int]:
    """Major and minor of ``8.9``.

    Raises:
        ValueError: the text has another form, or TensorRT-RTX does not build for that target.
    """
    major, dot, minor = text.partition(".")
    if not (dot and major.isdecimal() and minor.isdecimal()):
        raise ValueError(f"compute capability '{text}' is not MAJOR.MINOR, for example 8.9")
    find_capability(int(major), int(minor))
    return int(major), int(minor)
