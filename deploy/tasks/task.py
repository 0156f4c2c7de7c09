"""What a task is: fixed batches, and a score for anything that maps feeds to outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

Feeds = dict[str, np.ndarray]
"""Input arrays by name, first axis batch."""
Infer = Callable[[Feeds], dict[str, np.ndarray]]
"""A backend's ``infer``: feeds to outputs by name."""


class Runnable(Protocol):
    """What an open backend is to a task or a benchmark."""

    @property
    def is_simulated(self) -> bool:
        """Whether it computes its graph's integers in float."""

    def infer(self, feeds: Feeds, /) -> dict[str, np.ndarray]:
        """Outputs by name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskResult:
    """Outcome of one evaluation."""

    score: float
    """The task's metric."""
    details: dict[str, float] = field(default_factory=dict)
    """Further figures by name."""


class Task(Protocol):
    """A task holds its batches, so every candidate sees the same ones in the same order."""

    @property
    def name(self) -> str:
        """As in ``--task``."""

    @property
    def metric(self) -> str:
        """Name of the score, for people."""

    @property
    def higher_is_better(self) -> bool:
        """Direction of the metric."""

    @property
    def num_examples(self) -> int:
        """How many sentences, pairs or tokens the score is an average over."""

    def evaluate(self, infer: Infer) -> TaskResult:
        """Score of a model."""
