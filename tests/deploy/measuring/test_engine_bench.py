"""Statistics, warnings and verdicts of engines on made-up traces; nothing here ran on a GPU."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count, cycle
from typing import Any, cast

import numpy as np
import pytest

from deploy.backends.cuda_stream import CudaError
from deploy.backends.engine_timing import QueryTimes, Turn
from deploy.measuring.engine_bench import Device, EngineCandidate, bench_engines
from deploy.measuring.engine_modes import MODES, Mode
from deploy.measuring.interleaving import Schedule

FEEDS = {"input_ids": np.zeros((2, 8), np.int64)}
SCHEDULE = Schedule(repeats=3, seconds=1.0, round_seconds=0.25, warmup_seconds=0.01, settle_seconds=0.01)
L4 = Device(capability="8.9", facts={"device": "NVIDIA L4, SM 8.9", "driver": "CUDA 13.0"})


@dataclass
class Trace:
    """An engine whose queries take what a recording says; ten queries a turn."""

    compute: Iterator[float]
    h2d: float = 0.01
    d2h: float = 0.01
    enqueue: float = 0.02
    captures: bool = True
    calls: list[str] = field(default_factory=list)

    def timer(self, _feeds: Any, *, cuda_graph: bool) -> Any:
        if cuda_graph and not self.captures:
            raise CudaError("the CUDA driver refuses cuStreamEndCapture (error 901)")
        self.calls.append(f"timer {cuda_graph}")
        return self

    def per_request(self, _seconds: float) -> Turn:
        return self._turn(waits=True)

    def back_to_back(self, _seconds: float) -> Turn:
        return self._turn(waits=False)

    def _turn(self, *, waits: bool) -> Turn:
        queries = []
        for _ in range(10):
            compute = next(self.compute)
            device = self.h2d + compute + self.d2h
            host = device + 0.05 if waits else None
            queries.append(QueryTimes(enqueue=self.enqueue, h2d=self.h2d, compute=compute, d2h=self.d2h, host=host))
        walltime = sum(max(query.latency, query.enqueue) if not waits else query.latency + 0.05 for query in queries)
        return Turn(queries=tuple(queries), walltime_ms=walltime)

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, *_: object) -> None:
        self.calls.append("closed")


def steady(milliseconds: float, *, noise: float = 0.002, seed: int = 0) -> Iterator[float]:
    generator = np.random.default_rng(seed)
    return (milliseconds * float(1 + noise * generator.standard_normal()) for _ in count())


def _pair(slow: Trace, fast: Trace, **fields: Any) -> list[EngineCandidate]:
    return [
        EngineCandidate(name="fp16", engine=cast("Any", slow), precision="float16", products={"float16": 10}),
        EngineCandidate(
            name="int8",
            engine=cast("Any", fast),
            precision="int8 + float16",
            products=fields.get("products", {"int8": 8, "float16": 2}),
        ),
    ]


def _bench(slow: Trace, fast: Trace, *, modes: tuple[Mode, ...] = MODES[:1], device: Device = L4, **fields: Any) -> Any:
    return bench_engines(_pair(slow, fast, **fields), FEEDS, device, schedule=SCHEDULE, modes=modes)


def test_every_mode_has_a_report_with_the_fields_of_trtexec() -> None:
    slow, fast = Trace(steady(2.0)), Trace(steady(1.0, seed=1))
    reports = _bench(slow, fast, modes=MODES)
    assert [report.mode for report in reports] == [
        "per request, CUDA graph",
        "per request, no CUDA graph",
        "back to back, CUDA graph",
        "back to back, no CUDA graph",
    ]
    assert slow.calls == ["timer True", "closed", "timer False", "closed"] * 2
    for report in reports:
        values = json.loads(json.dumps(report.to_dict(), allow_nan=False))
        first, second = values["timings"]
        assert first["device"]["gpu_compute_ms"]["median"] == pytest.approx(2.0, rel=0.01)
        assert first["device"]["h2d_ms"]["median"] == pytest.approx(0.01)
        assert first["device"]["enqueue_ms"]["p99"] == pytest.approx(0.02)
        assert first["latency_ms"]["median"] == pytest.approx(2.02, rel=0.01)
        assert (first["device"]["host_latency_ms"] is None) == report.mode.startswith("back")
        assert second["products"] == {"int8": 8, "float16": 2}
        assert values["gpu"]["device"] == "NVIDIA L4, SM 8.9"
        assert report.warnings == ()
        assert report.timings[1].speed_up.ratio == pytest.approx(2.02 / 1.02, rel=0.05)
        assert report.timings[1].speed_up.low <= 2.02 / 1.02 * 1.01


def test_throughput_is_queries_over_the_walltime_of_the_host() -> None:
    [report] = _bench(Trace(steady(2.0, noise=0.0)), Trace(steady(1.0, noise=0.0)), modes=(MODES[2],))
    assert report.timings[0].throughput_qps == pytest.approx(1000.0 / 2.02)
    assert report.timings[1].throughput_samples == pytest.approx(2 * 1000.0 / 1.02)


def test_the_verdict_names_the_generation_and_how_many_products_ran_in_int8() -> None:
    [report] = _bench(Trace(steady(2.0)), Trace(steady(1.0)))
    [verdict] = report.verdicts
    assert verdict.startswith("int8: worth it: INT8 is 1.9")
    assert verdict.endswith("SM 8.9 (Ada) multiplies INT8 twice as fast as float16; FP8 is as fast and needs less care")
    [report] = _bench(Trace(steady(2.0)), Trace(steady(1.9)), products={"int8": 1, "float16": 9})
    assert "not worth it" in report.verdicts[0]
    assert "only 1 of 10 matrix products ran in INT8" in report.verdicts[0]
    [report] = _bench(Trace(steady(2.0)), Trace(steady(1.0)), device=Device(capability="12.0"))
    assert report.verdicts[0].endswith("has few INT8 units: prefer FP8")


def test_integers_against_integers_get_no_verdict() -> None:
    candidates = [
        EngineCandidate(name=name, engine=cast("Any", Trace(steady(1.0))), precision="int8 + float16") for name in "ab"
    ]
    [report] = bench_engines(candidates, FEEDS, L4, schedule=SCHEDULE, modes=MODES[:1])
    assert report.verdicts == ()
    assert any("no difference from a was shown" in warning for warning in report.warnings)


def _drifting() -> Iterator[float]:
    """0.5 % slower with every turn."""
    return (1.0 + 0.005 * (index // 10) for index in count())


TRACES: dict[str, tuple[Callable[[], Trace], str]] = {
    "bimodal": (
        lambda: Trace(cycle([1.0] * 7 + [1.5] * 7)),
        r"int8: GPU compute time jumps between 1 ms and 1.5 ms \(\d+% of the samples\)",
    ),
    "drifting": (lambda: Trace(_drifting()), r"int8: the median moved by \d+% between repeats"),
    "spiky": (
        lambda: Trace(cycle([1.0] * 59 + [40.0])),
        "int8: .* samples took over 3 times the median, the longest 40",
    ),
    "noisy": (lambda: Trace(steady(1.0, noise=0.15)), "int8: GPU compute time varies by 1"),
    "enqueue-bound": (
        lambda: Trace(steady(0.1), enqueue=0.3),
        "int8: enqueue-bound: the host needs 0.3 ms to send a query that the GPU computes in 0.1 ms",
    ),
    "transfer-bound": (
        lambda: Trace(steady(1.0), h2d=1.5, d2h=0.5),
        r"int8: transfer-bound: copies take 2 ms \(1.5 to the device, 0.5 back\) beside 1 ms of computing",
    ),
}


@pytest.mark.parametrize("name", TRACES)
def test_what_spoils_a_measurement_is_told_and_nothing_else(name: str) -> None:
    make, told = TRACES[name]
    [report] = _bench(Trace(steady(2.0)), make())
    spoilt = [warning for warning in report.warnings if "no difference" not in warning]
    assert len(spoilt) <= 2, spoilt
    assert all(warning.startswith("int8: ") for warning in spoilt)
    assert any(re.search(told, warning) for warning in spoilt), spoilt


def test_a_cuda_graph_is_advised_only_where_there_is_none() -> None:
    with_graph, without = _bench(Trace(steady(2.0)), Trace(steady(0.1), enqueue=0.3), modes=MODES[:2])
    assert "a CUDA graph or a larger batch" in without.warnings[0]
    assert "a CUDA graph" not in with_graph.warnings[0]


def test_an_engine_that_no_cuda_graph_takes_is_measured_without_and_the_reason_is_told() -> None:
    fast = Trace(steady(1.0), captures=False)
    reports = _bench(Trace(steady(2.0)), fast, modes=MODES)
    assert [report.mode for report in reports] == ["per request, no CUDA graph", "back to back, no CUDA graph"]
    for report in reports:
        assert report.warnings[0] == (
            "int8: not measured with a CUDA graph: the CUDA driver refuses cuStreamEndCapture (error 901)"
        )


def test_a_device_that_fails_ends_the_benchmark() -> None:
    class Failing(Trace):
        def timer(self, _feeds: Any, *, cuda_graph: bool) -> Any:
            raise CudaError("the CUDA driver refuses cuMemAlloc_v2 (error 2, out of memory)")

    with pytest.raises(CudaError, match="out of memory"):
        _bench(Trace(steady(2.0)), Failing(steady(1.0)), modes=(MODES[1],))
