"""Switches of sites that are ``auto``: every combination is made, all are timed in turns on the backend that will run them, and the fastest stays.

Only speed decides; what the integers cost in accuracy is ``compare``'s and ``explain``'s business. All off stays unless another
combination is faster beyond doubt.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx

from deploy.backends.artifact import input_shapes
from deploy.backends.opening import ENGINE_BACKENDS, open_backend, require_devices
from deploy.graphs.graph_structure import read_outline
from deploy.graphs.profiles import Switch, profile_named
from deploy.graphs.shapes import joined_sizes, parse_shapes
from deploy.graphs.site_choice import SiteChoice
from deploy.measuring.bench_report import BenchReport, CandidateTiming
from deploy.measuring.engine_modes import MODES
from deploy.quantization.bits import Bits
from deploy.quantization.switch_decision import SwitchDecision, SwitchTiming, fastest, switches_text
from deploy.tasks.task import Feeds
from quietformer.engine_build import EngineWishes, build_from_texts, targets_here
from quietformer.graph_data.graph_inputs import graph_inputs
from quietformer.latency_measurement import Measured, measure_latency
from quietformer.progress import Job

_ORDER: tuple[Switch, ...] = ("off", "on")


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedOn:
    """Where and how long combinations are timed."""

    engines: EngineWishes
    """Its backend times, a CPU one or one of engines; the rest is for engines. ``usual`` is the shape, one input by default."""
    seconds: float = 1.0
    """Per combination and repeat."""
    repeats: int = 3

    @property
    def backend(self) -> str:
        """Name of the backend."""
        return self.engines.backend


def usual_backend(profile: str) -> str:
    """Where a profile's graphs are timed where nobody says: ``tensorrt`` and ``fp8`` are for GPUs, the others for ONNX Runtime."""
    return "tensorrt" if profile_named(profile).symmetric else "onnxruntime"


def check_auto(choice: SiteChoice, *, profile: str, backend: str, bits: str = "W8A8") -> None:
    """Refuse switches that cannot be timed, before any work; nothing to refuse where none is ``auto``.

    Raises:
        ValueError: names the switch: no device, a backend that does not run the profile, or widths that no kernel has.
    """
    if not choice.open_switches:
        return
    name = choice.open_switches[0]
    if Bits.parse(bits).is_simulated:
        raise ValueError(f"{name} is 'auto', and {bits} is simulated: its speed means nothing; give off or on")
    if backend in ENGINE_BACKENDS and not profile_named(profile).symmetric:
        raise ValueError(f"{name} is 'auto': profile '{profile}' makes no engines; time it on onnxruntime or openvino")
    if backend not in ENGINE_BACKENDS and profile_named(profile).is_float8:
        raise ValueError(
            f"{name} is 'auto': {backend} computes FP8 in float; time profile '{profile}' on an engine backend"
        )
    try:
        require_devices([backend])
    except ValueError as error:
        raise ValueError(
            f"{name} is 'auto', which needs a device to time on: {error}; give off or on, or time on a CPU backend"
        ) from error


def decide_switches(
    graph: Path,
    choice: SiteChoice,
    quantized: Callable[[SiteChoice, Path], object],
    timed_on: TimedOn,
    *,
    scratch: Path,
    job: Job,
) -> SwitchDecision:
    """Make every combination of the open switches, time them, and choose.

    Args:
        graph: the float graph.
        choice: with at least one switch that is ``auto``.
        quantized: makes the graph of a choice without such switches, at a path.
        timed_on: where and how long.
        scratch: an existing folder; the candidates lie below it meanwhile.
        job: told what is done.

    Raises:
        ValueError: a backend, the builder or ``quantized`` refuses.
    """
    sizes = input_shapes(read_outline(graph))
    inputs = graph_inputs(graph)
    usual = timed_on.engines.usual
    shape = inputs.usual_shape if usual is None else _feeds_shape(usual, sizes)
    with TemporaryDirectory(dir=scratch, prefix=".switches.") as folder:
        made = list(_candidates(choice, quantized, Path(folder), job=job))
        if len(made) < 2:
            timing = SwitchTiming(switches=made[0][0], median_ms=None, precision="", speed_up=None)
            return _decision(timed_on, (timing,), device="", measured="", is_simulated=False)
        parts = [
            Measured(
                name=switches_text(switches),
                backend=timed_on.backend,
                artifact=_artifact(path, timed_on.engines, usual=shape, job=job),
            )
            for switches, path in made
        ]
        report = _measured(parts, inputs.full_batch(None, shape), timed_on, job=job)
        simulated = False
        if timed_on.backend not in ENGINE_BACKENDS:
            with open_backend(timed_on.backend, parts[0].artifact) as opened:
                simulated = opened.is_simulated
    timings = tuple(_timing(switches, timing) for (switches, _), timing in zip(made, report.timings, strict=True))
    return _decision(timed_on, timings, device=_device(report), measured=report.title, is_simulated=simulated)


def _measured(parts: Sequence[Measured], feeds: Feeds, timed_on: TimedOn, *, job: Job) -> BenchReport:
    """The candidates in turns; engines per request as a CUDA graph, or without one where some engine cannot be written down as one."""
    for modes in (MODES[:1], MODES[1:2]):
        reports = measure_latency(
            parts, [feeds], repeats=timed_on.repeats, seconds=timed_on.seconds, modes=modes, job=job
        )
        if reports:
            break
    return reports[0]


def _feeds_shape(usual: str, sizes: dict[str, tuple[int | str, ...]]) -> str:
    """The shape of one input, where each has its own."""
    first = next(iter(parse_shapes(usual, sizes).values()))
    return joined_sizes(first)


def _candidates(
    choice: SiteChoice, quantized: Callable[[SiteChoice, Path], object], folder: Path, *, job: Job
) -> Iterator[tuple[dict[str, Switch], Path]]:
    """Switches and graph of each combination that differs from the earlier ones; all off first."""
    names = choice.open_switches
    seen: set[str] = set()
    for values in product(_ORDER, repeat=len(names)):
        switches = dict(zip(names, values, strict=True))
        job.tell(f"making {switches_text(switches)}")
        path = folder / "-".join(values) / "model.onnx"
        path.parent.mkdir()
        quantized(choice.decided(switches), path)
        if (content := _content(path)) not in seen:
            seen.add(content)
            yield switches, path


def _content(path: Path) -> str:
    """Hash of what a graph computes: its metadata tells the choice that made it."""
    structure = onnx.load(path, load_external_data=False)
    del structure.metadata_props[:]
    return hashlib.sha256(structure.SerializeToString(deterministic=True)).hexdigest()


def _artifact(path: Path, wishes: EngineWishes, *, usual: str, job: Job) -> Path:
    """The graph itself, or its engine for the GPU at hand."""
    if wishes.backend not in ENGINE_BACKENDS:
        return path
    own = replace(wishes, compute_capabilities=targets_here(wishes.backend), usual=wishes.usual or usual)
    build_from_texts(path, path.parent / "engine", own, force=False, job=job)
    return path.parent / "engine"


def _timing(switches: dict[str, Switch], timing: CandidateTiming) -> SwitchTiming:
    speed_up = timing.speed_up
    return SwitchTiming(
        switches=switches,
        median_ms=round(timing.latency_ms.median, 4),
        precision=timing.precision,
        speed_up=(round(speed_up.ratio, 4), round(speed_up.low, 4), round(speed_up.high, 4)) if speed_up else None,
    )


def _device(report: BenchReport) -> str:
    return report.gpu.get("device") or f"{report.machine.cpu}, {report.machine.num_cores} cores"


def _decision(
    timed_on: TimedOn, timings: tuple[SwitchTiming, ...], *, device: str, measured: str, is_simulated: bool
) -> SwitchDecision:
    return SwitchDecision(
        switches=fastest(timings),
        backend=timed_on.backend,
        device=device,
        measured=measured,
        is_simulated=is_simulated,
        timings=timings,
    )
