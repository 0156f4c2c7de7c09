"""Layouts of all watched tensors of one graph, found by running it on a few tiny inputs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from deploy.calibration.padding_probe import padded_feeds, probed_layout
from deploy.calibration.token_axes import TensorLayout, layout_from_shapes
from deploy.graphs.watched_graph import Feeds, WatchedGraph

# Two shapes that share no factor with one another, so that the way a size follows them is unmistakable.
_ROWS = (2, 3)
_LENGTHS = (5, 7)
_IDS_NAME = "input_ids"
_PROBE_BYTES = 64 << 20
_VALUE_BYTES = 4


def find_layouts(graph: WatchedGraph, tensors: Sequence[str], *, mask_name: str) -> dict[str, TensorLayout]:
    """How the shape of each tensor follows batch and length.

    Args:
        graph: to run; its inputs may have static sizes.
        tensors: names of watched tensors.
        mask_name: the input that marks padding.

    Raises:
        ValueError: the graph does not run, or a tensor's token axes cannot be told.
    """
    rows, length = _static_sizes(graph)
    runs = [(rows or _ROWS[run], length or _LENGTHS[run]) for run in range(2)]
    if rows and length:
        runs = runs[:1]
    session = graph.open(tensors, shapes_only=True, threads=1)
    shapes = [session.run(_tiny_feeds(graph, batch, tokens)) for batch, tokens in runs]
    layouts = {name: layout_from_shapes(name, [tuple(run[name].tolist()) for run in shapes], runs) for name in tensors}
    if length is None or mask_name not in {entry.name for entry in graph.inputs}:
        return layouts
    return layouts | _probe_padding(graph, layouts, rows=rows or 1, length=length, mask_name=mask_name)


def _probe_padding(
    graph: WatchedGraph, layouts: dict[str, TensorLayout], *, rows: int, length: int, mask_name: str
) -> dict[str, TensorLayout]:
    """Layouts of the tensors that have an axis as long as the input, decided by what padding changes."""
    ids = [entry.name for entry in graph.inputs if entry.name == _IDS_NAME]
    undecided = [name for name, layout in layouts.items() if layout.candidates(length)]
    if not ids:
        raise ValueError(f"{graph.path} has a padding mask but no input '{_IDS_NAME}'; export it with an open length")
    found: dict[str, TensorLayout] = {}
    base = _tiny_feeds(graph, rows, length)
    first, second = (
        {
            name: np.repeat(value, rows, axis=0)
            for name, value in padded_feeds(base, mask_name=mask_name, ids_name=ids[0], token_id=token).items()
        }
        for token in (0, 1)
    )
    while undecided:
        group = [undecided.pop(0)]
        size = _bytes(layouts[group[0]], rows, length)
        while undecided and size + _bytes(layouts[undecided[0]], rows, length) <= _PROBE_BYTES:
            size += _bytes(layouts[undecided[0]], rows, length)
            group.append(undecided.pop(0))
        session = graph.open(group, threads=1)
        one, two = session.run(first), session.run(second)
        for name in group:
            found[name] = probed_layout(name, layouts[name], one[name], two[name], rows=rows, length=length)
    return found


def _bytes(layout: TensorLayout, rows: int, length: int) -> int:
    return 2 * rows * layout.row_elements(length) * _VALUE_BYTES


def _static_sizes(graph: WatchedGraph) -> tuple[int | None, int | None]:
    """Static batch and static length of a graph's inputs, None where they are open."""
    rows = {entry.shape[0] for entry in graph.inputs if entry.shape}
    lengths = {entry.shape[1] for entry in graph.inputs if len(entry.shape) == 2}
    return next((size for size in rows if size), None), next((size for size in lengths if size), None)


def _tiny_feeds(graph: WatchedGraph, rows: int, length: int) -> Feeds:
    """Ones in masks and zeros elsewhere, at one shape."""
    feeds = {}
    for entry in graph.inputs:
        shape = [rows, length][: len(entry.shape)] if len(entry.shape) <= 2 else [rows, *entry.shape[1:]]
        if any(size is None for size in shape):
            raise ValueError(
                f"input '{entry.name}' of {graph.path} leaves more open than batch and length: {entry.shape}"
            )
        fill = 1 if "mask" in entry.name else 0
        feeds[entry.name] = np.full([int(size) for size in shape if size is not None], fill, dtype=entry.dtype)
    return feeds
