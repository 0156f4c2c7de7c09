"""Outputs: how closely what a graph gives follows the float graph, on arrays as they come. Needs no labels, no texts.

Of arrays with an ``attention_mask`` only what is not padding counts: nothing has to be right at positions that nobody reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from deploy.tasks.task import Feeds, Infer, TaskResult

RealParts = Callable[[str, np.ndarray, Feeds], list[np.ndarray]]
"""Pieces of one output, by its name, that count for these feeds."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class OutputsTask:
    """Signal to quantization noise of all float outputs, in dB."""

    batches: tuple[Feeds, ...]
    reference: tuple[dict[str, list[np.ndarray]], ...]
    """What counts of the float outputs of the float model, per batch."""
    real: RealParts
    name: str = "outputs"
    metric: str = "SQNR to float (dB)"
    higher_is_better: bool = True

    @property
    def num_examples(self) -> int:
        """Number of rows."""
        return sum(len(next(iter(batch.values()))) for batch in self.batches)

    def evaluate(self, infer: Infer) -> TaskResult:
        """``10 log10(sum r^2 / sum (r - x)^2)``, the lowest over the outputs, infinite where all are equal; of the worst output also the relative error and the largest difference."""
        squares: dict[str, list[float]] = {}
        for batch, expected in zip(self.batches, self.reference, strict=True):
            found = infer(batch)
            if missing := sorted(set(expected) - set(found)):
                raise ValueError(f"the graph has no output '{missing[0]}'; it has {', '.join(sorted(found))}")
            for output, parts in expected.items():
                sums = squares.setdefault(output, [0.0, 0.0, 0.0])
                for exact, given in zip(parts, self.real(output, found[output], batch), strict=True):
                    difference = exact.astype(np.float64) - given
                    if not np.isfinite(difference).all():
                        number = int((~np.isfinite(difference)).sum())
                        raise ValueError(f"output '{output}' has {number} non-finite values")
                    sums[0] += float(np.square(exact, dtype=np.float64).sum())
                    sums[1] += float(np.square(difference).sum())
                    sums[2] = max(sums[2], float(np.abs(difference).max(initial=0.0)))
        scores = {output: _decibel(signal, noise) for output, (signal, noise, _) in squares.items()}
        worst = min(scores, key=scores.__getitem__)
        signal, noise, largest = squares[worst]
        return TaskResult(
            score=scores[worst],
            details={
                "relative_error": float(np.sqrt(noise / signal)) if signal else 0.0,
                "max_abs_difference": largest,
            },
        )


def outputs_task(batches: Sequence[Feeds], float_infer: Infer, *, real: RealParts | None = None) -> OutputsTask:
    """Run the float model once.

    Args:
        batches: inputs.
        float_infer: the float model.
        real: what counts of an output; all of it by default.

    Raises:
        ValueError: no batch, no float output, or one that is not finite.
    """
    if not batches:
        raise ValueError("no batch to compare outputs on")
    real = real or _everything
    reference = []
    for batch in batches:
        kept = {
            name: real(name, values, batch) for name, values in float_infer(batch).items() if values.dtype.kind == "f"
        }
        if not kept:
            raise ValueError("the float graph has no float output to compare")
        if bad := sorted(name for name, parts in kept.items() if not all(np.isfinite(part).all() for part in parts)):
            raise ValueError(f"output '{bad[0]}' of the float graph is not finite on this data")
        reference.append(kept)
    return OutputsTask(batches=tuple(batches), reference=tuple(reference), real=real)


def _everything(_output: str, values: np.ndarray, _feeds: Feeds) -> list[np.ndarray]:
    return [values]


def _decibel(signal: float, noise: float) -> float:
    if noise == 0:
        return inf
    return float(10 * np.log10(signal / noise)) if signal else -inf
