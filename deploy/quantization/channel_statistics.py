"""Per channel of the last axis of float tensors: mean and largest absolute value over real positions.

What rival fixes need and calibration caches do not hold, since integers here have one scale per tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from deploy.graphs.feed_types import MASK_NAME
from deploy.graphs.watched_graph import Feeds, WatchedGraph


@dataclass(frozen=True, kw_only=True, slots=True)
class ChannelStatistics:
    """Of one tensor with K channels."""

    mean: NDArray[np.float64]
    """(K,)."""
    amax: NDArray[np.float64]
    """(K,)."""


def channel_statistics(
    model_path: Path, tensors: Sequence[str], batches: Iterable[Feeds], *, threads: int | None = None
) -> dict[str, ChannelStatistics]:
    """Run data through a float graph.

    Args:
        model_path: float ONNX graph.
        tensors: to watch; (B, T, K) tensors leave padded positions out where the feeds have a mask, others count whole.
        batches: feeds by input name.
        threads: of ONNX Runtime.

    Raises:
        ValueError: no batch, or the graph cannot run on one.
    """
    session = WatchedGraph(model_path).open(tensors, threads=threads)
    sums: dict[str, NDArray[np.float64]] = {}
    largest: dict[str, NDArray[np.float64]] = {}
    counts = dict.fromkeys(tensors, 0)
    for feeds in batches:
        mask = feeds.get(MASK_NAME)
        for name, values in session.run(feeds).items():
            if mask is not None and values.ndim == 3 and values.shape[:2] == mask.shape:
                rows = values[np.not_equal(mask, 0)].astype(np.float64)
            else:
                rows = values.reshape(-1, values.shape[-1]).astype(np.float64)
            sums[name] = sums.get(name, 0.0) + rows.sum(axis=0)
            largest[name] = np.maximum(largest.get(name, 0.0), np.abs(rows).max(axis=0, initial=0.0))
            counts[name] += len(rows)
    if not sums:
        raise ValueError("no batch to measure channels on")
    return {name: ChannelStatistics(mean=sums[name] / max(counts[name], 1), amax=largest[name]) for name in tensors}
