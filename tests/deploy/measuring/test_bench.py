import json
from collections.abc import Iterable

import numpy as np
import pytest

from deploy.measuring.bench import Candidate, bench


class FakeClock:
    """A clock that only moves when a fake backend works."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[str] = []

    def __call__(self) -> float:
        return self.now


class FakeBackend:
    """Takes the given milliseconds, in turn, for every call."""

    is_simulated = False

    def __init__(self, name: str, clock: FakeClock, milliseconds: Iterable[float]) -> None:
        self.name, self.clock, self.milliseconds, self.count = name, clock, list(milliseconds), 0
        self.seen: list[int] = []

    def infer(self, feeds: dict[str, np.ndarray], /) -> dict[str, np.ndarray]:
        self.clock.now += self.milliseconds[self.count % len(self.milliseconds)] / 1000.0
        self.count += 1
        self.clock.calls.append(self.name)
        self.seen.append(int(feeds["input_ids"][0, 0]))
        return {}


def _feeds(batch: int = 2, length: int = 8, first: int = 0) -> dict[str, np.ndarray]:
    return {"input_ids": np.full((batch, length), first, dtype=np.int64)}


def _pair(slow: Iterable[float] = (8.0,), fast: Iterable[float] = (2.0,)) -> tuple[FakeClock, list[Candidate]]:
    clock = FakeClock()
    backends = [FakeBackend("float", clock, slow), FakeBackend("int8", clock, fast)]
    return clock, [Candidate(name=backend.name, backend=backend, precision="p") for backend in backends]


def test_figures_of_a_constant_machine_are_exact() -> None:
    clock, candidates = _pair()
    report = bench(candidates, _feeds(batch=2, length=8), seconds=1.0, clock=clock)
    slow, fast = report.timings
    assert (report.batch_size, report.length, report.baseline) == (2, 8, "float")
    assert slow.latency_ms.median == pytest.approx(8.0)
    assert fast.throughput_qps == pytest.approx(500.0)
    assert fast.throughput_samples == pytest.approx(1000.0)
    assert slow.speed_up is None
    assert fast.speed_up is not None
    assert (fast.speed_up.low, fast.speed_up.ratio, fast.speed_up.high) == pytest.approx((4.0, 4.0, 4.0))
    assert fast.total_host_walltime_s == pytest.approx(3.0, rel=0.02)
    assert report.warnings == ()


def test_candidates_take_turns_in_short_rounds() -> None:
    clock, candidates = _pair()
    bench(candidates, _feeds(), seconds=1.0, round_seconds=0.25, clock=clock)
    changes = sum(before != after for before, after in zip(clock.calls, clock.calls[1:], strict=False))
    # Per repeat: one change between the warm-ups, one back to the first candidate, then A B A B ... in four rounds.
    assert changes == 3 * (1 + 1 + 2 * 4 - 1) + 2


def test_warm_up_is_left_out_of_the_samples() -> None:
    clock = FakeClock()
    cold = FakeBackend("cold", clock, [100.0, *([5.0] * 100_000)])
    report = bench([Candidate(name="cold", backend=cold)], _feeds(), seconds=0.5, warmup_seconds=0.2, clock=clock)
    assert report.timings[0].latency_ms.max == pytest.approx(5.0)
    assert cold.count > report.timings[0].num_queries


def test_every_round_of_every_candidate_sees_all_feeds_alike() -> None:
    clock, candidates = _pair()
    feeds = [_feeds(first=index) for index in range(3)]
    report = bench(
        candidates, feeds, seconds=0.2, round_seconds=0.1, warmup_seconds=0.01, settle_seconds=0.001, clock=clock
    )
    assert all(len(one) % 3 == 0 for timing in report.timings for one in timing.rounds_ms)
    seen = candidates[0].backend.seen  # type: ignore[attr-defined]
    assert set(seen) == {0, 1, 2}


def test_noise_ends_up_as_a_warning() -> None:
    clock, candidates = _pair(fast=(2.0, 3.0))
    report = bench(candidates, _feeds(), seconds=0.5, clock=clock)
    assert [
        warning
        for warning in report.warnings
        if warning.startswith("int8") and "jumps between 2 ms and 3 ms (50%" in warning
    ]


def test_two_equal_candidates_are_not_called_faster() -> None:
    clock, candidates = _pair(slow=(2.0,), fast=(2.0,))
    assert any("no difference" in warning for warning in bench(candidates, _feeds(), seconds=0.5, clock=clock).warnings)


def test_report_is_json() -> None:
    clock, candidates = _pair()
    report = bench(candidates, _feeds(), seconds=0.5, baseline="int8", clock=clock)
    values = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert values["timings"][0]["latency_ms"]["p99"] == pytest.approx(8.0)
    assert values["machine"]["num_cores"] >= 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"baseline": "fp16"}, "unknown baseline 'fp16'; candidates are float, int8"),
        ({"feeds": []}, "nothing to measure"),
        ({"feeds": [_feeds(batch=1), _feeds(batch=2)]}, r"batch sizes \[1, 2\]"),
        ({"seconds": 0.0}, "must all be positive"),
        ({"seconds": float("inf")}, "must all be positive and finite"),
        ({"seconds": float("nan")}, "must all be positive and finite"),
    ],
)
def test_what_cannot_be_measured_is_refused(change: dict[str, object], message: str) -> None:
    clock, candidates = _pair()
    arguments: dict[str, object] = {"feeds": _feeds(), "clock": clock} | change
    with pytest.raises(ValueError, match=message):
        bench(candidates, **arguments)  # type: ignore[arg-type]


def test_two_candidates_of_one_name_are_refused() -> None:
    clock, candidates = _pair()
    with pytest.raises(ValueError, match="two candidates are called 'float'"):
        bench([candidates[0], candidates[0]], _feeds(), clock=clock)
