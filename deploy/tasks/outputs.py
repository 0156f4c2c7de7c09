"""Outputs: how closely everything a graph gives follows the float graph, on arrays as they come. Needs no labels, no texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from deploy.tasks.task import Feeds, Infer, TaskResult

_LARGEST_DB = 200.0
"""Said of outputs that are equal."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class OutputsTask:
    """Signal to quantization noise of all float outputs, in dB."""

    batches: tuple[Feeds, ...]
    reference: tuple[dict[str, np.ndarray], ...]
    """Float outputs of the float model, per batch."""
    name: str = "outputs"
    metric: str = "SQNR to float (dB)"
    higher_is_better: bool = True

    @property
    def num_examples(self) -> int:
        """Number of rows."""
        return sum(len(next(iter(batch.values()))) for batch in self.batches)

    def evaluate(self, infer: Infer) -> TaskResult:
        """``10 log10(sum r^2 / sum (r - x)^2)``, the lowest over the outputs; of the worst output also the relative error and the largest difference."""
        squares: dict[str, list[float]] = {}
        for batch, expected in zip(self.batches, self.reference, strict=True):
            found = infer(batch)
            if missing := sorted(set(expected) - set(found)):
                raise ValueError(f"the graph has no output '{missing[0]}'; it has {', '.join(sorted(found))}")
            for output, values in expected.items():
                difference = values.astype(np.float64) - found[output]
                if not np.isfinite(difference).all():
                    raise ValueError(f"output '{output}' has {int((~np.isfinite(difference)).sum())} non-finite values")
                sums = squares.setdefault(output, [0.0, 0.0, 0.0])
                sums[0] += float(np.square(values, dtype=np.float64).sum())
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


def outputs_task(batches: Sequence[Feeds], float_infer: Infer) -> OutputsTask:
    """Run the float model once.

    Raises:
        ValueError: no batch, no float output, or one that is not finite.
    """
    if not batches:
        raise ValueError("no batch to compare outputs on")
    reference = []
    for batch in batches:
        kept = {name: values for name, values in float_infer(batch).items() if values.dtype.kind == "f"}
        if not kept:
            raise ValueError("the float graph has no float output to compare")
        if bad := sorted(name for name, values in kept.items() if not np.isfinite(values).all()):
            raise ValueError(f"output '{bad[0]}' of the float graph is not finite on this data")
        reference.append(kept)
    return OutputsTask(batches=tuple(batches), reference=tuple(reference))


def _decibel(signal: float, noise: float) -> float:
    if noise == 0:
        return _LARGEST_DB
    return min(_LARGEST_DB, float(10 * np.log10(signal / noise))) if signal else -_LARGEST_DB
