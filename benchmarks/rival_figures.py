"""What is measured of one opened graph: fidelity to the float outputs, a task's score, and latency beside the float baseline."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.rival_runners import Runner, open_runner
from deploy.measuring.bench import Candidate, bench
from deploy.tasks.task import Feeds, Task

BASELINE = "original/float", "onnxruntime"
_MASK = "attention_mask"
_BATCH = 16
_LARGEST_DB = 200.0


def load_batches(file: str, *, rows: int) -> list[Feeds]:
    """The first rows of an ``.npz`` in batches of 16."""
    with np.load(file, allow_pickle=False) as stored:
        arrays = {name: stored[name][:rows] for name in stored.files}
    total = len(next(iter(arrays.values())))
    return [{name: array[at : at + _BATCH] for name, array in arrays.items()} for at in range(0, total, _BATCH)]


def vectors(runner: Runner, batches: list[Feeds]) -> np.ndarray:
    """First output as vectors: of every token that is no padding, or of every image."""
    parts = []
    for feeds in batches:
        output = next(iter(runner.infer(feeds).values()))
        parts.append(output[feeds[_MASK] != 0] if _MASK in feeds else output.reshape(len(output), -1))
    return np.concatenate(parts).astype(np.float64)


def fidelity(reference_ND: np.ndarray, found_ND: np.ndarray) -> dict[str, float]:
    """Signal to noise of all vectors in dB, ``10 log10(sum r^2 / sum (r - x)^2)``, and the mean cosine of a vector with its own."""
    if not np.isfinite(found_ND).all():
        raise ValueError("its outputs are not finite")
    noise = float(np.square(reference_ND - found_ND).sum())
    signal = float(np.square(reference_ND).sum())
    lengths = np.linalg.norm(reference_ND, axis=1) * np.linalg.norm(found_ND, axis=1)
    cosines = (reference_ND * found_ND).sum(axis=1) / np.maximum(lengths, np.finfo(np.float64).tiny)
    decibel = _LARGEST_DB if noise == 0 else float(10 * np.log10(signal / noise))
    return {"SQNR dB": round(min(decibel, _LARGEST_DB), 2), "cosine": round(float(cosines.mean()), 4)}


def judge(graph: Path, runner: str, batches: list[Feeds], reference: np.ndarray, task: Task | None) -> dict[str, Any]:
    """Scores of a graph on a runner, in one thread, so that other work on the machine holds it up less.

    Raises:
        ValueError: the runtime does not take the graph, or its outputs are not finite.
    """
    opened = open_runner(runner, graph, threads=1)
    try:
        scores = fidelity(reference, vectors(opened, batches))
        if task is not None:
            scores[task.metric] = round(task.evaluate(opened.infer).score, 4)
        return {"precision": opened.precision, "scores": scores}
    finally:
        opened.close()


def site_counts(graph: Path) -> dict[str, int]:
    """How many tensors are quantized as the graph runs, and how many matrix products are there with both sides in integers."""
    model = onnx.load(graph, load_external_data=False)
    made = {node.output[0]: node for node in model.graph.node}
    constants = {tensor.name for tensor in model.graph.initializer}
    tensors = {node.input[0] for node in model.graph.node if node.op_type == "QuantizeLinear"} - constants
    products = [node for node in model.graph.node if node.op_type in ("MatMul", "Gemm", "Conv", "ConvTranspose")]
    integer = sum(all(_is_integer(made, name) for name in node.input[:2]) for node in products)
    return {"tensors": len(tensors), "integer_products": integer, "products": len(products)}


def _is_integer(made: Mapping[str, onnx.NodeProto], name: str) -> bool:
    while (node := made.get(name)) is not None and node.op_type in ("Transpose", "Reshape", "Identity"):
        name = node.input[0]
    return node is not None and node.op_type == "DequantizeLinear"


def time_group(
    graphs: Mapping[tuple[str, str], Path], feeds: Feeds, *, seconds: float, repeats: int
) -> dict[tuple[str, str], dict[str, Any]]:
    """Median latency of a few graphs in turns, the first being the baseline.

    Args:
        graphs: by row and runner.
        feeds: of one shape.
        seconds: measured per graph and repeat.
        repeats: of the whole.

    Returns:
        ``ms``, and ``times``: how many times faster than the baseline in the same turns; or ``skipped``, where a runtime refuses a graph.
    """
    refused: dict[tuple[str, str], dict[str, Any]] = {}
    with ExitStack() as stack:
        candidates = []
        for (row, runner), graph in graphs.items():
            try:
                opened = open_runner(runner, graph)
                stack.callback(opened.close)
                opened.fix_shapes(feeds)
            except ValueError as error:
                refused[row, runner] = {"skipped": str(error)}
                continue
            candidates.append(Candidate(name=f"{row} on {runner}", backend=opened))
        report = bench(candidates, feeds, repeats=repeats, seconds=seconds, warmup_seconds=min(0.2, seconds))
    medians = [timing.latency_ms.median for timing in report.timings]
    opened_graphs = [key for key in graphs if key not in refused]
    return refused | {
        key: {"ms": round(median, 2), "times": round(medians[0] / median, 3)}
        for key, median in zip(opened_graphs, medians, strict=True)
    }
