"""What a score must reach: at most so much lost against the float model, or a lowest score of its own.

A task whose score is how closely the float model is followed gives that model itself no number to lose from: there only the
second makes sense.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from deploy.tasks.task import Task


@dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """One of two bounds, in the unit of the task's metric; without either nothing is judged."""

    max_drop: float | None = None
    """Largest loss against the float model that passes."""
    min_score: float | None = None
    """Lowest score that passes."""

    @property
    def is_open(self) -> bool:
        """Whether there is nothing to judge by."""
        return self.max_drop is None and self.min_score is None

    def check(self, task: Task) -> None:
        """Refuse what means nothing.

        Raises:
            ValueError: both bounds, one that is no finite number, a negative loss, a lowest score of a metric of which less is better.
        """
        if self.max_drop is not None and self.min_score is not None:
            raise ValueError("give max_drop or min_score, not both")
        if self.max_drop is not None and not (math.isfinite(self.max_drop) and self.max_drop >= 0):
            raise ValueError(f"max_drop is {self.max_drop}; expected a finite loss of at least 0, in {task.metric}")
        if self.min_score is None:
            return
        if not math.isfinite(self.min_score):
            raise ValueError(f"min_score is {self.min_score}; expected a finite number, in {task.metric}")
        if not task.higher_is_better:
            raise ValueError(f"min_score has no meaning for {task.metric}: less is better; give max_drop")

    def check_baseline(self, float_score: float, task: Task) -> None:
        """Refuse a loss against a score that has no upper end.

        Raises:
            ValueError: that is what was asked for.
        """
        if self.max_drop is not None and math.isinf(float_score):
            raise ValueError(
                f"max_drop has no meaning for {task.metric}: the float model equals itself; give min_score"
            )

    def passes(self, score: float, drop: float) -> bool:
        """Whether a score passes; what is no number (a collapsed model) never does, equal outputs always do.

        Args:
            score: of what is judged.
            drop: its loss against the float model; positive is worse.
        """
        if self.min_score is not None:
            return bool(score >= self.min_score)
        return self.max_drop is not None and bool(math.isfinite(drop) and drop <= self.max_drop)

    def in_words(self) -> str:
        """``a loss of at most 0.004`` or ``at least 40``."""
        return f"at least {self.min_score:g}" if self.min_score is not None else f"a loss of at most {self.max_drop:g}"


def loss_in_words(drop: float) -> str:
    """``lost 0.0123`` or ``gained 0.0041``."""
    return f"lost {drop:.4f}" if drop >= 0 else f"gained {-drop:.4f}"


def loss_against(float_score: float, score: float, *, higher_is_better: bool) -> float:
    """Loss of a score, positive is worse; against a score without an upper end infinite, and 0 where both are."""
    if score == float_score:
        return 0.0
    return float_score - score if higher_is_better else score - float_score
