"""Progress of a training run, told to whoever watches a command."""

from __future__ import annotations

from quietformer.progress import Job
from train.loop.progress import Evaluation, StepReport


class TrainingJob:
    """Callbacks of :class:`train.loop.progress.TrainingProgress` for a :class:`quietformer.progress.Job`."""

    def __init__(self, job: Job, *, score: str = "simulated W8A8") -> None:
        """Bind a job; ``score`` is what an evaluation's score is called."""
        self._job, self._score_name = job, score
        self._score = ""

    def on_start(self, *, step: int, steps: int) -> None:
        """Tell where the run starts."""
        self._job.advance(step, steps, "resumed" if step else "")

    def on_step(self, report: StepReport) -> None:
        """Tell the figures of an update."""
        figures = [f"loss {report.loss:.4f}"]
        if "penalty" in report.parts:
            figures.append(f"penalty {report.parts['penalty']:.3g}")
        if report.largest_activation is not None:
            figures.append(f"largest {report.largest_activation:.1f}")
        self._job.advance(report.step, report.steps, ", ".join([*figures, *filter(None, [self._score])]))

    def on_evaluation(self, evaluation: Evaluation, *, step: int, is_best: bool) -> None:
        """Keep the score beside the figures that follow."""
        self._score = f"{self._score_name} {evaluation.score:.4f} at {step}" + (" (best)" if is_best else "")
