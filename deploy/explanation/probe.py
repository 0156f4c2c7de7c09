"""A few examples of a task, run through one switched session: what any subset of the sites does to the graph's outputs.

Padded positions are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx

from deploy.calibration.real_outputs import RealOutputs
from deploy.explanation.explanation import ProbeRows
from deploy.explanation.literal_session import literal_session
from deploy.explanation.switched_graph import SWITCHES, Switchable, add_switches, constants_of
from deploy.quantization.site_selection import Place
from deploy.tasks.task import Feeds, Infer, Task

_ROWS = 16
"""Rows that are taken in all."""
_BATCHES = 4
"""Batches that they are taken from, evenly spread: tasks on texts go from short ones to long ones."""
_MOST_KEPT = 64
_SEED = 0


def probe_feeds(task: Task, infer: Infer, *, fixed_rows: int | None = None) -> tuple[ProbeRows, list[Feeds], float]:
    """A few examples of a task, drawn at random, their feeds, and the score of ``infer``, which ran the whole task for them.

    Args:
        task: whose batches.
        infer: the float graph.
        fixed_rows: rows of the only batch that the graph takes: whole batches are taken then.
    """
    at_most = fixed_rows or _ROWS
    kept: list[tuple[int, np.ndarray, Feeds]] = []
    stride, number = 1, 0

    def recording(feeds: Feeds) -> dict[str, np.ndarray]:
        nonlocal kept, stride, number
        if number % stride == 0:
            size = len(next(iter(feeds.values())))
            rows = np.random.default_rng([_SEED, number]).permutation(size)[:at_most]
            kept.append((number, rows, {name: value[rows] for name, value in feeds.items()}))
            if len(kept) > _BATCHES and fixed_rows is None:
                kept = [_cut(entry, _ROWS // _BATCHES) for entry in kept]
            if len(kept) >= _MOST_KEPT:
                kept, stride = kept[::2], 2 * stride
        number += 1
        return infer(feeds)

    score = task.evaluate(recording).score
    parts = min(_BATCHES, len(kept))
    chosen = [
        _cut(kept[(2 * part + 1) * len(kept) // (2 * parts)], fixed_rows or _ROWS // parts) for part in range(parts)
    ]
    taken = ProbeRows(
        batches=tuple(number for number, _, _ in chosen),
        rows=tuple(tuple(rows.tolist()) for _, rows, _ in chosen),
        available=number,
        seed=_SEED,
    )
    return taken, [feeds for _, _, feeds in chosen], score


def _cut(entry: tuple[int, np.ndarray, Feeds], rows: int) -> tuple[int, np.ndarray, Feeds]:
    number, taken, feeds = entry
    if len(taken) <= rows:
        return entry
    return number, taken[:rows], {name: value[:rows].copy() for name, value in feeds.items()}


_RealParts = Callable[[Mapping[str, np.ndarray], Feeds], list[np.ndarray]]
"""Pieces of the outputs without padding."""


class Probe:
    """An open switched session with the float model's values beside it; made by :func:`open_probe`."""

    def __init__(
        self,
        infer: Infer,
        switch: Mapping[Place, int],
        batches: Sequence[Feeds],
        floats: Sequence[list[np.ndarray]],
        real: _RealParts,
    ) -> None:
        self._infer, self._switch, self._batches, self._floats, self._real = infer, switch, batches, floats, real
        self.signal = sum(float(np.square(part, dtype=np.float64).sum()) for batch in floats for part in batch)

    @property
    def places(self) -> frozenset[Place]:
        """All places."""
        return frozenset(self._switch)

    def noise(self, on: Collection[Place]) -> float:
        """Squared error of the graph's outputs with exactly these places in integers, summed over the examples."""
        switches = np.zeros(len(self._switch), np.bool_)
        switches[[self._switch[place] for place in on]] = True
        total = 0.0
        for feeds, exact in zip(self._batches, self._floats, strict=True):
            found = self._real(self._infer(feeds | {SWITCHES: switches}), feeds)
            total += sum(float(np.square(a.astype(np.float64) - b).sum()) for a, b in zip(found, exact, strict=True))
        return total


@contextmanager
def open_probe(
    float_path: Path,
    float_model: onnx.ModelProto,
    quantized: onnx.ModelProto,
    sites: Sequence[Switchable],
    batches: Sequence[Feeds],
    *,
    threads: int | None = None,
) -> Iterator[Probe]:
    """Open the session of every subset.

    Args:
        float_path: the float graph.
        float_model: the same as a model, or its outline.
        quantized: its Q/DQ graph with all sites; gets switches in place.
        sites: of that graph.
        batches: examples.
        threads: of ONNX Runtime.

    Raises:
        ImportError: ONNX Runtime is not installed.
        ValueError: the graph does not run.
    """
    outputs = [value.name for value in quantized.graph.output]
    outputs_that_count = RealOutputs(float_path, outputs)

    def real(values: Mapping[str, np.ndarray], feeds: Feeds) -> list[np.ndarray]:
        return [part for name in outputs for part in outputs_that_count.parts(name, values[name], feeds)]

    switch = add_switches(quantized, sites, constants_of(float_model, sites, source=float_path))
    with literal_session(quantized, source=float_path, threads=threads) as infer:
        off = np.zeros(len(switch), np.bool_)
        floats = [real(infer(feeds | {SWITCHES: off}), feeds) for feeds in batches]
        yield Probe(infer, switch, batches, floats, real)
