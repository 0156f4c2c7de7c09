"""Streaming statistics equal those of all the data at once, and stay small."""

from __future__ import annotations

import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from deploy.calibration.tensor_statistics import TensorStatistics

VALUES = arrays(np.float32, st.integers(1, 40), elements=st.floats(-1e4, 1e4, width=32, allow_subnormal=False))


def statistics_of(*batches: np.ndarray) -> TensorStatistics:
    statistics = TensorStatistics(with_histogram=True)
    for batch in batches:
        statistics.update(batch)
    return statistics


def without_running(statistics: TensorStatistics) -> dict[str, object]:
    return {key: value for key, value in statistics.to_dict().items() if not key.startswith("running")}


@given(VALUES, VALUES, VALUES)
def test_merge_order_does_not_matter(one: np.ndarray, two: np.ndarray, three: np.ndarray) -> None:
    forward, backward = statistics_of(one), statistics_of(three)
    forward.merge(statistics_of(two))
    forward.merge(statistics_of(three))
    backward.merge(statistics_of(two))
    backward.merge(statistics_of(one))
    assert without_running(forward) == without_running(backward) == without_running(statistics_of(one, two, three))
    # A weighted mean in another order: equal up to float64 rounding.
    assert forward.running_low == pytest.approx(backward.running_low, rel=1e-9, abs=1e-9)
    assert forward.running_high == pytest.approx(backward.running_high, rel=1e-9, abs=1e-9)


def test_running_extremes_follow_the_batches_with_momentum() -> None:
    statistics = statistics_of(np.array([-1.0, 2.0]), np.array([-3.0, 1.0]), np.array([0.0, 12.0]))
    low, high = -1.0, 2.0  # the first batch sets them
    for batch_low, batch_high in ((-3.0, 1.0), (0.0, 12.0)):
        low, high = 0.9 * low + 0.1 * batch_low, 0.9 * high + 0.1 * batch_high
    assert (statistics.running_low, statistics.running_high) == pytest.approx((low, high))
    assert (statistics.low, statistics.high, statistics.batches, statistics.count) == (-3.0, 12.0, 3, 6)


def test_parts_of_a_batch_count_as_one_batch() -> None:
    parts, whole = TensorStatistics(), TensorStatistics()
    parts.observe([np.array([1.0, 2.0]), np.array([])])
    parts.observe([np.array([[-4.0]])])
    parts.close_batch()
    parts.close_batch()  # nothing new: no batch
    whole.update(np.array([1.0, 2.0, -4.0]))
    assert parts.to_dict() == whole.to_dict()


def test_non_finite_values_are_counted_and_enter_nothing_else() -> None:
    statistics = statistics_of(np.array([np.nan, 1.0, -np.inf, 2.0], np.float32), np.array([np.inf], np.float32))
    assert (statistics.nonfinite, statistics.count, statistics.low, statistics.high, statistics.batches) == (
        3,
        2,
        1.0,
        2.0,
        1,
    )
    assert statistics.histogram is not None
    assert statistics.histogram.total == 2


def test_plain_values_round_trip_through_json() -> None:
    for statistics in (statistics_of(np.array([0.1, -7.3, 0.0], np.float32)), TensorStatistics(unit_interval=True)):
        values = json.loads(json.dumps(statistics.to_dict(), allow_nan=False))
        assert TensorStatistics.from_dict(values).to_dict() == statistics.to_dict()


def test_statistics_collected_in_different_ways_do_not_merge() -> None:
    with pytest.raises(ValueError, match="unit_interval differs"):
        TensorStatistics().merge(TensorStatistics(unit_interval=True))
    with pytest.raises(ValueError, match="has a histogram"):
        TensorStatistics().merge(TensorStatistics(with_histogram=True))
    with pytest.raises(ValueError, match=r"momentum is 1\.0"):
        TensorStatistics(momentum=1.0)


def test_memory_does_not_grow_with_the_number_of_batches() -> None:
    statistics = TensorStatistics(with_histogram=True)
    generator = np.random.default_rng(0)
    batch = generator.normal(size=20_000).astype(np.float32)
    statistics.update(batch)
    tracemalloc.start()
    try:
        for _ in range(5):
            statistics.update(batch)
        after_five = tracemalloc.get_traced_memory()[0]
        for number in range(60):
            statistics.update(batch * (number + 1))
        after_many, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # One new array of counts (16 kB), and what other threads of this process hold; a batch that is kept has 80 kB.
    assert after_many - after_five < batch.nbytes // 2
    assert peak < 20 * batch.nbytes
