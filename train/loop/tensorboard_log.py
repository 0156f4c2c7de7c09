"""Scalars of a training run for TensorBoard: the one module that imports it, and only when scalars are written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from train.loop.progress import Evaluation, StepReport, TrainingProgress


class TensorBoardLog:
    """Writes ``train/…`` at every report and ``evaluation/…`` at every evaluation.

    A resumed run hides what an earlier session wrote beyond its checkpoint.
    """

    def __init__(self, folder: Path) -> None:
        """Name the folder of the event files; it is made when the run starts."""
        self._folder, self._writer = folder, None

    def on_start(self, *, step: int, steps: int) -> None:
        """Open the event file.

        Raises:
            ImportError: tensorboard is not installed.
        """
        self._writer = _summary_writer(self._folder, purge_step=step + 1 if step else None)

    def on_step(self, report: StepReport) -> None:
        """Write the figures of an update."""
        values = {
            "loss": report.loss,
            "learning_rate": report.learning_rate,
            "gradient_norm": report.gradient_norm,
            "largest_activation": report.largest_activation,
            "rows_per_second": report.rows_per_second,
            **report.parts,
        }
        self._write("train", values, step=report.step)

    def on_evaluation(self, evaluation: Evaluation, *, step: int, is_best: bool) -> None:
        """Write the figures of an evaluation."""
        self._write("evaluation", {"score": evaluation.score, **evaluation.figures}, step=step)

    def _write(self, prefix: str, values: dict[str, float | None], *, step: int) -> None:
        assert self._writer is not None
        for name, value in values.items():
            if value is not None:
                self._writer.add_scalar(f"{prefix}/{name}", value, step)
        self._writer.flush()


class Watchers:
    """Several watchers as one."""

    def __init__(self, watchers: Sequence[TrainingProgress]) -> None:
        self._watchers = tuple(watchers)

    def on_start(self, *, step: int, steps: int) -> None:
        """Tell all."""
        for watcher in self._watchers:
            watcher.on_start(step=step, steps=steps)

    def on_step(self, report: StepReport) -> None:
        """Tell all."""
        for watcher in self._watchers:
            watcher.on_step(report)

    def on_evaluation(self, evaluation: Evaluation, *, step: int, is_best: bool) -> None:
        """Tell all."""
        for watcher in self._watchers:
            watcher.on_evaluation(evaluation, step=step, is_best=is_best)


def _summary_writer(folder: Path, *, purge_step: int | None) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - an optional extra
    except ImportError as error:
        raise ImportError("TensorBoard scalars need tensorboard; pip install 'quietformer[tensorboard]'") from error
    return SummaryWriter(log_dir=str(folder), purge_step=purge_step)
