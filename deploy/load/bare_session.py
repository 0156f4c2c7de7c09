"""What the artifact itself does without a server: the bound that a server's throughput is measured against."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from deploy.backends.opening import open_backend
from deploy.graphs.feed_types import MASK_NAME
from deploy.load.requests import LoadRequests
from deploy.serving.artifact_choice import choose_artifact
from deploy.serving.batch_assembly import join


def bare_rows_per_second(
    artifact: Path,
    requests: LoadRequests,
    *,
    backend: str | None,
    threads: int | None,
    batches: Sequence[int],
    seconds: float,
) -> dict[int, float]:
    """Rows a second of one session that is given requests joined into full batches, one batch after the other.

    Args:
        artifact: run directory, graph or engine.
        requests: of tokens; padded to the longest of their batch.
        backend: None takes the one that ``serve`` takes.
        threads: of the session.
        batches: requests in a batch, for each measurement.
        seconds: of each measurement; a warm-up comes on top.

    Raises:
        ValueError: requests of texts, or what the backend refuses.
    """
    if MASK_NAME not in requests.arrays[0]:
        raise ValueError("a bare session takes tokens; compare it with the model of tensors, not with that of texts")
    chosen = choose_artifact(artifact, backend)
    found: dict[int, float] = {}
    with open_backend(chosen.backend, chosen.path, threads=threads) as session:
        for batch in batches:
            feeds = [_joined(requests.arrays[place : place + batch]) for place in range(0, len(requests.arrays), batch)]
            session.infer(feeds[0])
            rows, turn = 0, 0
            started = time.perf_counter()
            while (passed := time.perf_counter() - started) < seconds:
                session.infer(feeds[turn % len(feeds)])
                rows += len(feeds[turn % len(feeds)][MASK_NAME])
                turn += 1
            found[batch] = rows / passed
    return found


def _joined(parts: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return dict(join(parts, length=max(part[MASK_NAME].shape[1] for part in parts), fills={}))
