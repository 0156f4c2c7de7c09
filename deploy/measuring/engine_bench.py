"""Engines measured side by side on their device: with and without a CUDA graph, per request and back to back.

The speed-up compares latencies per request, and host time per query back to back. Unverified on a device: statistics and
warnings are tested on made-up traces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

from deploy.backends.engine_timing import Turn
from deploy.machine import machine_facts
from deploy.measuring.bench import check_bench, unresolved
from deploy.measuring.bench_report import BenchReport, CandidateTiming, DeviceTimes, shape_text
from deploy.measuring.device_warnings import device_warnings
from deploy.measuring.engine_modes import MODES, CaptureError, Mode, TimedEngine, compared, timers, turns_of
from deploy.measuring.gpu_verdict import Kind, verdict
from deploy.measuring.interleaving import Schedule, interleaved
from deploy.measuring.latency_statistics import SpeedUp, bootstrap_speed_up, noise_warnings, summarize
from deploy.tasks.task import Feeds

DEVICE_METHOD = (
    "interleaved rounds; times of the device by CUDA events, latency without the host's staging, no tokenization"
)
_DECIMALS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineCandidate:
    """One engine, already open."""

    name: str
    engine: TimedEngine
    precision: str
    products: dict[str, int] | None = None
    """Matrix products by the type they run in, from its inspection."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """Where engines run."""

    capability: str
    """Compute capability, such as ``8.9``."""
    facts: dict[str, str] = field(default_factory=dict)
    """Name and driver."""


def bench_engines(
    candidates: Sequence[EngineCandidate],
    feeds: Feeds,
    device: Device,
    *,
    baseline: str | None = None,
    schedule: Schedule | None = None,
    modes: Sequence[Mode] = MODES,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> list[BenchReport]:
    """Measure every engine on the same feeds, in turns, in every mode.

    Args:
        candidates: open engines with distinct names.
        feeds: inputs of one shape.
        device: that they run on.
        baseline: candidate that speed-ups refer to; the first when not given.
        schedule: how long, in each mode.
        modes: how queries are sent.
        seed: of the bootstrap.
        progress: called with one line per mode and repeat.

    Returns:
        A report per mode; a mode with CUDA graphs that some engine does not take is left out, with a warning in the others.

    Raises:
        ValueError: as :func:`deploy.measuring.bench.bench`, or feeds that an engine does not take.
        CudaError: the device fails.
    """
    schedule = schedule or Schedule()
    schedule.check()
    names = [candidate.name for candidate in candidates]
    batch_size, length = check_bench(names, [feeds], baseline=baseline)
    baseline = baseline or names[0]
    reports: list[BenchReport] = []
    warnings: list[str] = []
    for mode in modes:
        try:
            with timers({candidate.name: candidate.engine for candidate in candidates}, feeds, mode) as opened:
                recorded = interleaved(
                    {name: turns_of(timer, mode) for name, timer in opened.items()},
                    schedule,
                    tell=_teller(f"{shape_text(batch_size, length)}, {mode}", progress),
                )
        except CaptureError as error:
            warnings.append(str(error))
            continue
        timings = tuple(
            _timing(candidate, recorded, mode, baseline=baseline, batch_size=batch_size, seed=seed)
            for candidate in candidates
        )
        reports.append(
            BenchReport(
                batch_size=batch_size,
                length=length,
                baseline=baseline,
                timings=timings,
                warnings=tuple(_mode_warnings(timings, recorded, mode, baseline=baseline)),
                repeats=schedule.repeats,
                seconds=schedule.seconds,
                warmup_seconds=schedule.warmup_seconds,
                machine=machine_facts(),
                method=DEVICE_METHOD,
                mode=str(mode),
                verdicts=tuple(_verdicts(timings, device, baseline=baseline)),
                gpu=device.facts,
            )
        )
    return [replace(report, warnings=(*report.warnings, *warnings)) for report in reports]


def _teller(what: str, progress: Callable[[str], None] | None) -> Callable[[str], None]:
    return lambda text: progress(f"{what}: {text}") if progress else None


def _timing(
    candidate: EngineCandidate,
    recorded: Mapping[str, list[list[Turn]]],
    mode: Mode,
    *,
    baseline: str,
    batch_size: int,
    seed: int,
) -> CandidateTiming:
    turns = [turn for repeat in recorded[candidate.name] for turn in repeat]
    queries = [query for turn in turns for query in turn.queries]
    hosts = [query.host for query in queries if query.host is not None]
    walltime = sum(turn.walltime_ms for turn in turns) / 1000.0
    speed_up: SpeedUp | None = None
    if candidate.name != baseline:
        theirs = [turn for repeat in recorded[baseline] for turn in repeat]
        speed_up = bootstrap_speed_up(
            [compared(turn, mode) for turn in theirs], [compared(turn, mode) for turn in turns], seed=seed
        )
    return CandidateTiming(
        name=candidate.name,
        precision=candidate.precision,
        throughput_qps=len(queries) / walltime,
        throughput_samples=len(queries) * batch_size / walltime,
        latency_ms=summarize([query.latency for query in queries]),
        total_host_walltime_s=walltime,
        num_queries=len(queries),
        speed_up=speed_up,
        rounds_ms=tuple(tuple(round(query.latency, _DECIMALS) for query in turn.queries) for turn in turns),
        device=DeviceTimes(
            gpu_compute_ms=summarize([query.compute for query in queries]),
            h2d_ms=summarize([query.h2d for query in queries]),
            d2h_ms=summarize([query.d2h for query in queries]),
            enqueue_ms=summarize([query.enqueue for query in queries]),
            host_latency_ms=summarize(hosts) if hosts else None,
            total_gpu_compute_s=sum(query.compute for query in queries) / 1000.0,
        ),
        products=candidate.products,
    )


def _mode_warnings(
    timings: Sequence[CandidateTiming], recorded: Mapping[str, list[list[Turn]]], mode: Mode, *, baseline: str
) -> Iterator[str]:
    for timing in timings:
        compute = [[[query.compute for query in turn.queries] for turn in repeat] for repeat in recorded[timing.name]]
        yield from noise_warnings(timing.name, compute, what="GPU compute time")
        assert timing.device is not None
        yield from device_warnings(timing.name, timing.device, cuda_graph=mode.cuda_graph)
        if timing.speed_up is not None and not timing.speed_up.is_resolved:
            yield unresolved(timing.name, baseline)


def _verdicts(timings: Sequence[CandidateTiming], device: Device, *, baseline: str) -> Iterator[str]:
    """A sentence on each engine of 8 bits against the baseline, where that is one of more bits."""
    against = next(timing.precision for timing in timings if timing.name == baseline)
    if _eight_bits(against) is not None:
        return
    for timing in timings:
        kind = _eight_bits(timing.precision)
        if kind is not None and timing.speed_up is not None:
            said = verdict(
                device.capability,
                kind=kind,
                against=against,
                speedup=(timing.speed_up.low, timing.speed_up.high),
                products=timing.products,
            )
            yield f"{timing.name}: {said}"


def _eight_bits(precision: str) -> Kind | None:
    return next((kind for kind in get_args(Kind) if kind in precision), None)
