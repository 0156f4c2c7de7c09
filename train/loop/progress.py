"""What a training run tells whoever watches it, and the log of scalars it leaves behind."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, kw_only=True, slots=True)
class StepReport:
    """One update, or several when ``log_every`` is above 1 (then the figures are the last update's)."""

    step: int
    """Updates done."""
    steps: int
    """Updates in the whole run."""
    loss: float
    """What was minimised, the weighted penalty included."""
    parts: Mapping[str, float]
    """Terms of the loss before weighting."""
    largest_activation: float | None
    """Largest absolute value on the observed tensors, if any are observed."""
    learning_rate: float
    gradient_norm: float | None
    """Before clipping; ``None`` when gradients are not clipped."""
    rows_per_second: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """Result of one evaluation."""

    score: float
    """What decides which state is the best one; higher is better."""
    figures: Mapping[str, float]
    """Everything measured, by name."""


class TrainingProgress(Protocol):
    """Callbacks of a run, called on the main process only."""

    def on_start(self, *, step: int, steps: int) -> None:
        """The run starts, or resumes after ``step`` updates."""

    def on_step(self, report: StepReport) -> None:
        """An update is done."""

    def on_evaluation(self, evaluation: Evaluation, *, step: int, is_best: bool) -> None:
        """An evaluation is done."""


class SilentProgress:
    """Watches nothing."""

    def on_start(self, *, step: int, steps: int) -> None:
        """Do nothing."""

    def on_step(self, report: StepReport) -> None:
        """Do nothing."""

    def on_evaluation(self, evaluation: Evaluation, *, step: int, is_best: bool) -> None:
        """Do nothing."""


class ScalarLog:
    """A JSONL file of every report: ``{"kind": "step" | "evaluation", "step": N, ...}``, a line per report.

    A resumed run first drops the lines beyond the checkpoint it resumes from (a line cut in half by a kill included), so the
    file reads as if the run had never stopped. Non-finite values become ``null``: the file is strict JSON.
    """

    def __init__(self, path: Path, *, resumed_step: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = [line for line in _lines(path) if _step_of(line) <= resumed_step] if resumed_step else []
        partial = path.with_name(f".{path.name}.partial")
        partial.write_text("".join(f"{line}\n" for line in kept))
        partial.replace(path)
        self._path = path

    def step(self, report: StepReport) -> None:
        """Append a report of an update."""
        values = asdict(report)
        del values["steps"]
        self._append({"kind": "step", **values})

    def evaluation(self, evaluation: Evaluation, *, step: int) -> None:
        """Append an evaluation."""
        self._append({"kind": "evaluation", "step": step, "score": evaluation.score, **evaluation.figures})

    def _append(self, values: dict[str, Any]) -> None:
        with self._path.open("a") as stream:
            stream.write(json.dumps(_strict(values), allow_nan=False) + os.linesep)


class StopWatch:
    """Wall-clock seconds of a whole run, and of laps within it."""

    def __init__(self, earlier_seconds: float) -> None:
        self._earlier = earlier_seconds
        self._start = self._lap = time.perf_counter()

    def total(self) -> float:
        """Seconds since the start, and those of earlier sessions."""
        return self._earlier + time.perf_counter() - self._start

    def lap(self) -> float:
        """Seconds since the last call, or the start."""
        previous, self._lap = self._lap, time.perf_counter()
        return self._lap - previous


def _strict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _strict(entry) for key, entry in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _step_of(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (json.JSONDecodeError, KeyError, TypeError, ValueError):
        return math.inf
