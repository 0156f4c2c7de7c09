"""Latency and throughput of several candidates, measured side by side.

The candidates take turns in short rounds (A B A B …) on identical feeds, so whatever the machine does to one it does
to all. A number is the host's time of one call of ``infer``: inputs and outputs lie in host memory, nothing is
enqueued ahead, tokenization is not included.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from deploy.machine import MachineFacts, machine_facts
from deploy.measuring.latency_statistics import (
    LatencySummary,
    Rounds,
    SpeedUp,
    bootstrap_speed_up,
    noise_warnings,
    summarize,
)
from deploy.tasks.task import Feeds, Runnable

_SAMPLE_DECIMALS = 4
"""Samples are kept to 0.1 microseconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One thing to measure, already open."""

    name: str
    backend: Runnable
    precision: str = ""
    """Of the arithmetic, in words: ``float32``, ``bfloat16``, ``int8``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CandidateTiming:
    """Measurements of one candidate, named as trtexec names them."""

    name: str
    precision: str
    throughput_qps: float
    """Queries (calls of ``infer``) per second of host walltime."""
    throughput_samples: float
    """Rows of the batch per second of host walltime."""
    latency_ms: LatencySummary
    total_host_walltime_s: float
    """Host time spent in recorded rounds."""
    num_queries: int
    speed_up: SpeedUp | None
    """Over the baseline; None for the baseline itself."""
    rounds_ms: tuple[tuple[float, ...], ...]
    """Every recorded latency, by round."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchReport:
    """A benchmark with what one must know to read it."""

    batch_size: int
    length: int | None
    """Longest sequence fed, in tokens, padding included; None where no input has tokens."""
    baseline: str
    """Name of the candidate that speed-ups refer to."""
    timings: tuple[CandidateTiming, ...]
    warnings: tuple[str, ...]
    repeats: int
    seconds: float
    """Recorded time per candidate and repeat."""
    warmup_seconds: float
    machine: MachineFacts
    method: str = "interleaved rounds; host time of one synchronous call, nothing enqueued ahead, no tokenization"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    def table_rows(self) -> list[tuple[str, ...]]:
        """A header and one row per candidate, as text for people."""
        header = ("", "Throughput", "Latency min", "median", "mean", "p90", "p95", "p99", "max", "Speed-up")
        rows: list[tuple[str, ...]] = [header]
        for timing in self.timings:
            summary, speed_up = timing.latency_ms, timing.speed_up
            figures = (summary.min, summary.median, summary.mean, summary.p90, summary.p95, summary.p99, summary.max)
            rows.append(
                (
                    " ".join(filter(None, [timing.name, timing.precision])),
                    f"{timing.throughput_qps:.1f} qps",
                    *(f"{figure:.2f} ms" for figure in figures),
                    f"{speed_up.ratio:.2f}x [{speed_up.low:.2f}, {speed_up.high:.2f}]" if speed_up else "baseline",
                )
            )
        return rows


def bench(
    candidates: Sequence[Candidate],
    feeds: Feeds | Sequence[Feeds],
    *,
    baseline: str | None = None,
    repeats: int = 3,
    seconds: float = 3.0,
    warmup_seconds: float = 0.5,
    round_seconds: float = 0.25,
    settle_seconds: float = 0.05,
    seed: int = 0,
    clock: Callable[[], float] = time.perf_counter,
    progress: Callable[[str], None] | None = None,
) -> BenchReport:
    """Measure every candidate on the same feeds, in turns.

    Args:
        candidates: Open backends with distinct names.
        feeds: One set of inputs, or several of the same batch size that every round runs through completely.
        baseline: Candidate that speed-ups refer to; the first when not given.
        repeats: Independent repeats; their medians show whether the machine held still.
        seconds: Recorded time per candidate and repeat.
        warmup_seconds: Unrecorded time per candidate before the first round of every repeat.
        round_seconds: Length of one candidate's turn; a round is never shorter than one pass over ``feeds``.
        settle_seconds: Unrecorded time at the start of every round, in which caches fill and the worker threads of
            the previous candidate (which spin for a while after its last call) go to sleep.
        seed: Of the bootstrap.
        clock: Seconds, monotonic.
        progress: Called with one line per repeat.

    Raises:
        ValueError: no candidate, equal names, an unknown baseline, no feeds, different batch sizes, or a time that is
            not positive.
    """
    feed_list = [feeds] if isinstance(feeds, dict) else list(feeds)
    names = [candidate.name for candidate in candidates]
    batch_size, length = _check(
        names, feed_list, baseline=baseline, repeats=repeats, seconds=seconds, turn=round_seconds
    )
    rounds_per_repeat = max(2, round(seconds / round_seconds))
    recorded: dict[str, list[list[tuple[float, ...]]]] = {name: [] for name in names}
    for repeat in range(repeats):
        if progress is not None:
            progress(f"latency, {shape_text(batch_size, length)}: repeat {repeat + 1} of {repeats}")
        for candidate in candidates:
            recorded[candidate.name].append([])
            _run_for(warmup_seconds, candidate.backend, feed_list, clock)
        for _ in range(rounds_per_repeat):
            for candidate in candidates:
                _run_for(settle_seconds, candidate.backend, feed_list[:1], clock)
                samples = _run_for(round_seconds, candidate.backend, feed_list, clock)
                recorded[candidate.name][-1].append(samples)
    baseline = baseline or names[0]
    baseline_rounds = [samples for rounds in recorded[baseline] for samples in rounds]
    timings: list[CandidateTiming] = []
    warnings: list[str] = []
    for candidate in candidates:
        rounds = [samples for repeat_rounds in recorded[candidate.name] for samples in repeat_rounds]
        is_baseline = candidate.name == baseline
        speed_up = None if is_baseline else bootstrap_speed_up(baseline_rounds, rounds, seed=seed)
        timings.append(_timing(candidate, rounds, batch_size=batch_size, speed_up=speed_up))
        warnings.extend(noise_warnings(candidate.name, recorded[candidate.name]))
        if speed_up is not None and not speed_up.is_resolved:
            warnings.append(f"{candidate.name}: no difference from {baseline} was shown; the interval contains 1")
    return BenchReport(
        batch_size=batch_size,
        length=length,
        baseline=baseline,
        timings=tuple(timings),
        warnings=tuple(warnings),
        repeats=repeats,
        seconds=seconds,
        warmup_seconds=warmup_seconds,
        machine=machine_facts(),
    )


def _check(
    names: Sequence[str],
    feed_list: Sequence[Feeds],
    *,
    baseline: str | None,
    repeats: int,
    seconds: float,
    turn: float,
) -> tuple[int, int | None]:
    """Refuse what cannot be measured; batch size and longest length (tokens) of the feeds."""
    if not names or not feed_list:
        raise ValueError(f"nothing to measure: {len(names)} candidates, {len(feed_list)} feeds")
    if len(set(names)) < len(names):
        raise ValueError(f"two candidates are called '{next(name for name in names if names.count(name) > 1)}'")
    if baseline is not None and baseline not in names:
        raise ValueError(f"unknown baseline '{baseline}'; candidates are {', '.join(names)}")
    if repeats < 1 or not all(math.isfinite(span) and span > 0 for span in (seconds, turn)):
        raise ValueError(
            f"repeats {repeats}, seconds {seconds} and round_seconds {turn} must all be positive and finite"
        )
    shapes = {array.shape for feeds in feed_list for array in feeds.values()}
    batch_sizes = sorted({shape[0] for shape in shapes})
    if len(batch_sizes) > 1:
        raise ValueError(f"feeds have batch sizes {batch_sizes}; throughput needs one")
    return batch_sizes[0], max((shape[1] for shape in shapes if len(shape) == 2), default=None)


def shape_text(batch: int, length: int | None) -> str:
    """A shape for people: ``batch 1, length 128``, or ``batch 8`` where no input has tokens."""
    return f"batch {batch}" if length is None else f"batch {batch}, length {length}"


def _run_for(
    seconds: float, backend: Runnable, feed_list: Sequence[Feeds], clock: Callable[[], float]
) -> tuple[float, ...]:
    """Whole passes over the feeds, at least one, until ``seconds`` are over; latencies in ms."""
    samples = []
    started = clock()
    while True:
        for feeds in feed_list:
            before = clock()
            backend.infer(feeds)
            samples.append(round((clock() - before) * 1000.0, _SAMPLE_DECIMALS))
        if clock() - started >= seconds:
            return tuple(samples)


def _timing(candidate: Candidate, rounds: Rounds, *, batch_size: int, speed_up: SpeedUp | None) -> CandidateTiming:
    samples = [sample for one in rounds for sample in one]
    walltime = sum(samples) / 1000.0
    return CandidateTiming(
        name=candidate.name,
        precision=candidate.precision,
        throughput_qps=len(samples) / walltime,
        throughput_samples=len(samples) * batch_size / walltime,
        latency_ms=summarize(samples),
        total_host_walltime_s=walltime,
        num_queries=len(samples),
        speed_up=speed_up,
        rounds_ms=tuple(tuple(one) for one in rounds),
    )
