"""Artifacts as tasks run them: batches larger than an engine was built for go through in parts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from deploy.backends.base import Backend, Feeds
from deploy.backends.opening import open_backend


@dataclass(frozen=True, kw_only=True, slots=True)
class InParts:
    """A backend that answers batches of any size."""

    backend: Backend
    largest: int
    """Rows that it takes at once."""

    @property
    def is_simulated(self) -> bool:
        """As the backend's own."""
        return self.backend.is_simulated

    def infer(self, feeds: Feeds, /) -> dict[str, np.ndarray]:
        """As the backend's own; rows never influence one another, so the parts are those of the whole."""
        rows = len(next(iter(feeds.values()))) if feeds else 0
        if rows <= self.largest:
            return self.backend.infer(feeds)
        parts = [
            self.backend.infer({name: array[start : start + self.largest] for name, array in feeds.items()})
            for start in range(0, rows, self.largest)
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


@contextmanager
def open_for_tasks(name: str, artifact: Path) -> Iterator[Backend | InParts]:
    """Open an artifact for evaluation; arguments and errors as :func:`deploy.backends.opening.open_backend`."""
    with open_backend(name, artifact) as backend:
        yield backend if backend.largest_batch is None else InParts(backend=backend, largest=backend.largest_batch)
