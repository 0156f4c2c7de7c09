"""Open artifacts and measure them in turns: graphs on the host's clock, engines on their device's."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from deploy.backends.artifact import input_shapes
from deploy.backends.base import check_shapes
from deploy.backends.cuda_devices import cuda_devices
from deploy.backends.engine_inspection import EngineInspection
from deploy.backends.engine_report import EngineReport
from deploy.backends.opening import ENGINE_BACKENDS, open_backend, require_devices
from deploy.backends.tensorrt_gpu import TensorRtBackend
from deploy.graphs.graph_structure import read_outline
from deploy.measuring.bench import Candidate, bench
from deploy.measuring.bench_report import BenchReport
from deploy.measuring.engine_bench import Device, EngineCandidate, bench_engines
from deploy.measuring.engine_modes import MODES, Mode
from deploy.measuring.gpu_clocks import ClockWatch, watched_clocks
from deploy.measuring.interleaving import Schedule
from deploy.tasks.task import Feeds
from quietformer.progress import Job

_CUDA_GRAPHS = "onnxruntime-cuda"


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """One artifact that takes part."""

    name: str
    backend: str
    artifact: Path


def measure_latency(
    parts: Sequence[Measured],
    batches: Sequence[Feeds],
    *,
    repeats: int,
    seconds: float,
    threads: int | None = None,
    modes: Sequence[Mode] = MODES,
    job: Job,
) -> list[BenchReport]:
    """Measure artifacts in turns; the first is the baseline.

    Args:
        parts: all on CPU backends (or ONNX Runtime's CUDA), or all on one engine backend.
        batches: feeds, one set per shape.
        repeats: independent repeats.
        seconds: measured time per artifact and repeat; of engines in each mode.
        threads: per backend; None lets each choose.
        modes: of engines, how queries are sent.
        job: told what is done.

    Returns:
        Reports by shape; of engines by shape and mode.

    Raises:
        ValueError: no device, engines beside graphs, or what a backend or the benchmark refuses.
    """
    backends = {part.backend for part in parts}
    require_devices(sorted(backends))
    if backends & set(ENGINE_BACKENDS):
        if len(backends) > 1:
            raise ValueError(
                f"backends {' and '.join(sorted(backends))} are timed by different clocks; measure each in a call of its own"
            )
        if threads is not None:
            raise ValueError(f"threads has no effect on backend '{backends.pop()}': it computes on the GPU")
        return _measure_engines(parts, batches, Schedule.of(repeats=repeats, seconds=seconds), modes, job=job)
    gpu = cuda_devices()[0][0] if _CUDA_GRAPHS in backends else None
    reports = []
    with ExitStack() as stack:
        opened = [stack.enter_context(open_backend(part.backend, part.artifact, threads=threads)) for part in parts]
        candidates = [
            Candidate(name=part.name, backend=backend, precision=backend.precision)
            for part, backend in zip(parts, opened, strict=True)
        ]
        for feeds in batches:
            for backend in opened:
                backend.fix_shapes(feeds)
            with watched_clocks(gpu) as watch:
                report = bench(candidates, feeds, repeats=repeats, seconds=seconds, progress=job.tell)
            reports.append(_with_clocks(report if gpu is None else replace(report, gpu=gpu.facts()), watch))
    return reports


def refuse_other_inputs(artifacts: Sequence[Path], batches: Sequence[Feeds]) -> None:
    """Guard a measurement from artifacts that cannot take its inputs, before any is opened.

    Raises:
        FileNotFoundError: an artifact is missing.
        ValueError: names the first one whose inputs have other names or, of a graph, other sizes.
    """
    for artifact in artifacts:
        shapes = None if artifact.is_dir() else input_shapes(read_outline(artifact))
        names = EngineReport.load(artifact).inputs if shapes is None else shapes
        for feeds in batches:
            if set(feeds) != set(names):
                raise ValueError(
                    f"{artifact} takes {', '.join(names)}, and {artifacts[0]} takes {', '.join(feeds)}; "
                    "what is measured side by side must take the same inputs"
                )
            if shapes is not None:
                try:
                    check_shapes(feeds, shapes)
                except ValueError as error:
                    raise ValueError(f"{artifact}: {error}") from error


def _measure_engines(
    parts: Sequence[Measured], batches: Sequence[Feeds], schedule: Schedule, modes: Sequence[Mode], *, job: Job
) -> list[BenchReport]:
    schedule.check()
    with ExitStack() as stack:
        engines = [stack.enter_context(TensorRtBackend(part.artifact, backend=part.backend)) for part in parts]
        candidates = [
            EngineCandidate(name=part.name, engine=engine, precision=engine.precision, products=_products(engine))
            for part, engine in zip(parts, engines, strict=True)
        ]
        device = Device(capability=engines[0].capability, facts=engines[0].device_facts())
        reports: list[BenchReport] = []
        for feeds in batches:
            with watched_clocks(cuda_devices()[0][0]) as watch:
                measured = bench_engines(candidates, feeds, device, schedule=schedule, modes=modes, progress=job.tell)
            reports += [_with_clocks(report, watch) for report in measured]
        return reports


def _with_clocks(report: BenchReport, watch: ClockWatch) -> BenchReport:
    clocks = watch.clocks
    if clocks is None:
        return report
    return replace(report, clocks=clocks, warnings=(*report.warnings, *clocks.warnings()))


def _products(engine: TensorRtBackend) -> dict[str, int] | None:
    """None for an engine that was built without what an inspection needs."""
    try:
        inspection: EngineInspection = engine.inspect()
    except ValueError:
        return None
    return inspection.product_counts()
