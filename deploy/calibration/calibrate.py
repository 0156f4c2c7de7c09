"""Run data through a float graph and keep, per watched tensor, what a range is chosen from.

Memory stays flat: batches are cut into chunks of rows whose watched tensors fit in a budget, and every chunk's values
become statistics at once. Padded positions are left out, so padding never changes a range.

Legend: B rows, T tokens with padding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.calibration.calibration_cache import CalibrationCache
from deploy.calibration.method_choice import methods_by_tensor
from deploy.calibration.ranges import HISTOGRAM_METHODS, method_parameters, parse_method
from deploy.calibration.tensor_statistics import MOMENTUM, TensorStatistics
from deploy.calibration.token_axes import TensorLayout, real_parts
from deploy.calibration.token_layouts import find_layouts
from deploy.graphs.feed_types import MASK_NAME
from deploy.graphs.float16 import refuse_float16
from deploy.graphs.graph_refusal import refuse_quantized
from deploy.graphs.model_hash import model_sha256
from deploy.graphs.sites import ObservedTensor, observed_tensors
from deploy.graphs.watched_graph import Feeds, WatchedGraph, WatchedSession

RANDOM_KIND = "random"
"""``kind`` of a data identity that is no data at all."""

Progress = Callable[[int, int | None], None]
"""Told the batches done, and how many there are where that is known."""

# Watched values of one run: small enough to stay near the caches, which makes short runs faster than whole batches.
_CHUNK_BYTES = 64 << 20
# One row may take this much before its tensors are watched in several passes.
_PASS_BYTES = 192 << 20
_VALUE_BYTES = 4


def calibrate(
    model_path: Path,
    batches: Iterable[Feeds],
    *,
    method: str,
    parameters: dict[str, Any] | None = None,
    data: dict[str, Any],
    seed: int,
    preprocessing: dict[str, Any] | None = None,
    allow_random: bool = False,
    methods: Mapping[str, str] | None = None,
    observed: Sequence[ObservedTensor] | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> CalibrationCache:
    """Statistics of every tensor that some profile quantizes.

    Args:
        model_path: float ONNX graph.
        batches: feeds (B, T) by input name; lengths may differ from batch to batch. ``attention_mask`` marks padding.
        method: how ranges will be chosen (:data:`deploy.calibration.ranges.Method`); the searching ones keep histograms.
        parameters: of the method, where they differ from its defaults.
        data: identity of the data, for the cache.
        seed: of the choice of data, for the cache.
        preprocessing: how data became feeds, for the cache.
        allow_random: accept data of kind ``random``; the cache then says that it is not for accuracy.
        methods: other methods for single tensors, by pattern.
        observed: tensors to watch; by default all that some profile quantizes.
        threads: of ONNX Runtime.
        progress: called after each batch.

    Raises:
        FileNotFoundError: no such model.
        ValueError: unknown method or parameter, a pattern that matches no tensor, random data without leave, a quantized graph, no batch, feeds that do not fit the graph,
            or a tensor with non-finite values (named).
        ImportError: ONNX Runtime is not installed.
    """
    chosen = method_parameters(method, parameters)
    if (is_random := data.get("kind") == RANDOM_KIND) and not allow_random:
        raise ValueError("random data gives ranges that mean nothing; give real data, or allow random data explicitly")
    graph = WatchedGraph(model_path)
    outline = graph.outline()
    refuse_quantized(outline, name=str(model_path))
    refuse_float16(outline, name=str(model_path))
    observed = observed_tensors(outline) if observed is None else observed
    if not observed:
        raise ValueError(f"{model_path} has no tensor to calibrate: no profile quantizes anything in it")
    single = methods_by_tensor(
        methods or {}, [tensor.name for tensor in observed], kinds={tensor.name: tensor.kind for tensor in observed}
    )
    statistics = {
        tensor.name: TensorStatistics(
            with_histogram=parse_method(single.get(tensor.name, method))[0] in HISTOGRAM_METHODS
            and not tensor.unit_interval,
            unit_interval=tensor.unit_interval,
            momentum=chosen.get("momentum", MOMENTUM),
        )
        for tensor in observed
    }
    first, batches = _peek(batches)
    _check_feeds(first, graph, number=1)
    layouts = find_layouts(graph, list(statistics), mask_name=MASK_NAME)
    passes = _passes(layouts, length=real_positions(first).shape[1])
    if len(passes) > 1 and not isinstance(batches, Sequence):
        batches = list(batches)
    total = len(batches) * len(passes) if isinstance(batches, Sequence) else None
    samples = done = number = 0
    for names in passes:
        session = graph.open(names, threads=threads)
        samples = 0
        for number, feeds in enumerate(batches, start=1):
            _check_feeds(feeds, graph, number=number)
            samples += _observe(session, feeds, graph, layouts={name: layouts[name] for name in names}, into=statistics)
            for name in names:
                statistics[name].close_batch()
                _refuse_nonfinite(name, statistics[name], batch=number)
            done += 1
            if progress is not None:
                progress(done, total)
    return CalibrationCache(
        model_sha256=model_sha256(model_path),
        data=data,
        preprocessing=preprocessing or {},
        method=method,
        parameters=chosen,
        seed=seed,
        samples=samples,
        batches=number,
        tensors=statistics,
        methods=single,
        not_for_accuracy=is_random,
    )


def _observe(
    session: WatchedSession,
    feeds: Feeds,
    graph: WatchedGraph,
    *,
    layouts: dict[str, TensorLayout],
    into: dict[str, TensorStatistics],
) -> int:
    """Run one batch chunk by chunk; returns how many rows had a real token."""
    mask_BT = real_positions(feeds)
    lengths = mask_BT.sum(axis=1)
    # Rows of similar length together need little padding; the order of rows in a batch means nothing.
    rows = np.flatnonzero(lengths)[np.argsort(lengths[lengths > 0], kind="stable")]
    open_batch = all(entry.shape[0] is None for entry in graph.inputs)
    open_length = all(len(entry.shape) < 2 or entry.shape[1] is None for entry in graph.inputs)
    start = 0
    while start < len(rows):
        stop = len(rows)
        if open_batch:
            longest = mask_BT.shape[1]
            row_bytes = sum(layout.row_elements(longest) for layout in layouts.values()) * _VALUE_BYTES
            stop = min(stop, start + max(1, _CHUNK_BYTES // row_bytes))
        chunk = rows[start:stop] if open_batch else np.arange(len(mask_BT))
        chunk_mask_BT = mask_BT[chunk]
        columns = int(np.flatnonzero(chunk_mask_BT.any(axis=0))[-1]) + 1 if open_length else mask_BT.shape[1]
        chunk_mask_BT = chunk_mask_BT[:, :columns]
        cut = {
            name: value[chunk, :columns] if value.shape[:2] == mask_BT.shape else value[chunk]
            for name, value in feeds.items()
        }
        for name, values in session.run(cut).items():
            into[name].observe(real_parts(values, chunk_mask_BT, layouts[name]))
        start = stop
    return len(rows)


def _passes(layouts: dict[str, TensorLayout], *, length: int) -> list[list[str]]:
    """Tensors in groups whose values for one row fit in the budget; one group for all but the largest models."""
    groups: list[list[str]] = [[]]
    used = 0
    for name, layout in layouts.items():
        size = layout.row_elements(length) * _VALUE_BYTES
        if groups[-1] and used + size > _PASS_BYTES:
            groups.append([])
            used = 0
        groups[-1].append(name)
        used += size
    return groups


def _peek(batches: Iterable[Feeds]) -> tuple[Feeds, Iterable[Feeds]]:
    if isinstance(batches, Sequence):
        if not batches:
            raise ValueError("no batch to calibrate on")
        return batches[0], batches
    iterator: Iterator[Feeds] = iter(batches)
    first = next(iterator, None)
    if first is None:
        raise ValueError("no batch to calibrate on")
    return first, chain([first], iterator)


def real_positions(feeds: Feeds) -> NDArray[np.bool_]:
    """Real positions (B, T); all of them without a mask, where T is the length of the first input of rank 2."""
    if MASK_NAME in feeds:
        return np.not_equal(feeds[MASK_NAME], 0)
    shapes = [value.shape for value in feeds.values()]
    return np.ones(next((shape for shape in shapes if len(shape) == 2), (shapes[0][0], 1)), dtype=np.bool_)


def _check_feeds(feeds: Feeds, graph: WatchedGraph, *, number: int) -> None:
    if missing := sorted({entry.name for entry in graph.inputs} - set(feeds)):
        raise ValueError(f"batch {number} lacks input '{missing[0]}'; it has {', '.join(feeds)}")
    if unknown := sorted(set(feeds) - {entry.name for entry in graph.inputs}):
        raise ValueError(f"batch {number} has '{unknown[0]}', which is no input of {graph.path}")
    if len({value.shape[0] for value in feeds.values()}) != 1 or not next(iter(feeds.values())).size:
        shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in feeds.items())
        raise ValueError(f"batch {number} has inputs of different or no rows: {shapes}")


def _refuse_nonfinite(name: str, statistics: TensorStatistics, *, batch: int) -> None:
    if statistics.nonfinite:
        raise ValueError(
            f"tensor '{name}' has {statistics.nonfinite} non-finite values beside {statistics.count} finite ones "
            f"(batch {batch}): the float model itself fails there"
        )
