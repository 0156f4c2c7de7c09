"""Counts and durations of a model, as Triton defines them; touched by the event loop alone."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class Duration:
    """How often something happened and how long it took altogether."""

    count: int = 0
    ns: int = 0

    def add(self, ns: int, count: int = 1) -> None:
        """Count something that took ``ns``."""
        self.count += count
        self.ns += ns


@dataclass(frozen=True, kw_only=True, slots=True)
class Stages:
    """Nanoseconds of one run: joining the batch, the runtime, taking the outputs apart."""

    compute_input: int
    compute_infer: int
    compute_output: int


@dataclass(slots=True)
class BatchStatistics:
    """Runs of one batch size."""

    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)


@dataclass(slots=True)
class InferenceStatistics:
    """Of one version of a model."""

    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)
    failures: dict[str, int] = field(default_factory=lambda: {"REJECTED": 0, "CANCELED": 0, "BACKEND": 0, "OTHER": 0})
    """Failed requests by reason."""
    inference_count: int = 0
    """Rows of successful requests."""
    execution_count: int = 0
    """Runs; fewer than requests where requests shared one."""
    last_inference_ms: int = 0
    """Time of the latest successful request, milliseconds since 1970."""
    pending: int = 0
    """Requests that wait in the queue."""
    batches: dict[int, BatchStatistics] = field(default_factory=dict)
    """By rows of the run."""

    def ran(self, rows: int, stages: Stages) -> None:
        """A batch of ``rows`` rows ran."""
        self.execution_count += 1
        batch = self.batches.setdefault(rows, BatchStatistics())
        batch.compute_input.add(stages.compute_input)
        batch.compute_infer.add(stages.compute_infer)
        batch.compute_output.add(stages.compute_output)

    def answered(self, *, rows: int, total_ns: int, queue_ns: int, stages: Stages) -> None:
        """A request was answered."""
        self.success.add(total_ns)
        self.queue.add(queue_ns)
        self.compute_input.add(stages.compute_input)
        self.compute_infer.add(stages.compute_infer)
        self.compute_output.add(stages.compute_output)
        self.inference_count += rows
        self.last_inference_ms = time.time_ns() // 1_000_000

    def refused(self, reason: str, total_ns: int) -> None:
        """A request failed, for one of the reasons of ``failures``."""
        self.fail.add(total_ns)
        self.failures[reason] += 1
