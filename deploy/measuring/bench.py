"""Latency and throughput of several candidates, measured side by side on the host.

The candidates take turns in short rounds on identical feeds. A number is the host's time of one call of ``infer``: inputs
and outputs lie in host memory, nothing is enqueued ahead, tokenization is not included. Engines are timed by their device:
:mod:`deploy.measuring.engine_bench`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from deploy.machine import machine_facts
from deploy.measuring.bench_report import BenchReport, CandidateTiming, shape_text
from deploy.measuring.interleaving import Schedule, Turns, interleaved
from deploy.measuring.latency_statistics import Rounds, SpeedUp, bootstrap_speed_up, noise_warnings, summarize
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
        repeats: See :class:`Schedule`, as for the next four.
        seconds: Recorded time per candidate and repeat.
        warmup_seconds: Before each repeat.
        round_seconds: Of one turn; a round is never shorter than one pass over ``feeds``.
        settle_seconds: At the start of each turn.
        seed: Of the bootstrap.
        clock: Seconds, monotonic.
        progress: Called with one line per repeat.

    Raises:
        ValueError: no candidate, equal names, an unknown baseline, no feeds, different batch sizes, or a time that is
            not positive.
    """
    feed_list = [feeds] if isinstance(feeds, dict) else list(feeds)
    names = [candidate.name for candidate in candidates]
    batch_size, length = check_bench(names, feed_list, baseline=baseline)
    schedule = Schedule(
        repeats=repeats,
        seconds=seconds,
        warmup_seconds=warmup_seconds,
        round_seconds=round_seconds,
        settle_seconds=settle_seconds,
    )
    schedule.check()
    recorded = interleaved(
        {candidate.name: _turns(candidate.backend, feed_list, clock) for candidate in candidates},
        schedule,
        tell=lambda text: progress(f"latency, {shape_text(batch_size, length)}: {text}") if progress else None,
    )
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
            warnings.append(unresolved(candidate.name, baseline))
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


def check_bench(names: Sequence[str], feed_list: Sequence[Feeds], *, baseline: str | None) -> tuple[int, int | None]:
    """Refuse what cannot be measured; batch size and longest length (tokens) of the feeds.

    Raises:
        ValueError: no candidate, equal names, an unknown baseline, no feeds or different batch sizes.
    """
    if not names or not feed_list:
        raise ValueError(f"nothing to measure: {len(names)} candidates, {len(feed_list)} feeds")
    if len(set(names)) < len(names):
        raise ValueError(f"two candidates are called '{next(name for name in names if names.count(name) > 1)}'")
    if baseline is not None and baseline not in names:
        raise ValueError(f"unknown baseline '{baseline}'; candidates are {', '.join(names)}")
    shapes = {array.shape for feeds in feed_list for array in feeds.values()}
    batch_sizes = sorted({shape[0] for shape in shapes})
    if len(batch_sizes) > 1:
        raise ValueError(f"feeds have batch sizes {batch_sizes}; throughput needs one")
    return batch_sizes[0], max((shape[1] for shape in shapes if len(shape) == 2), default=None)


def unresolved(name: str, baseline: str) -> str:
    """The warning about a candidate that is neither faster nor slower."""
    return f"{name}: no difference from {baseline} was shown; the interval contains 1"


def _turns(backend: Runnable, feed_list: Sequence[Feeds], clock: Callable[[], float]) -> Turns[tuple[float, ...]]:
    return Turns(
        measure=lambda seconds: _run_for(seconds, backend, feed_list, clock),
        settle=lambda seconds: _run_for(seconds, backend, feed_list[:1], clock),
    )


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
