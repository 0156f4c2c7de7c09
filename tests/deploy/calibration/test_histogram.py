"""The histogram's state is a function of the values alone, and its bins hold what they say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from deploy.calibration.histogram import BINS, Histogram, fitting_exponent

FLOATS = st.floats(-1e6, 1e6, width=32, allow_subnormal=False)
VALUES = arrays(np.float32, st.integers(1, 60), elements=FLOATS)


def histogram_of(*batches: np.ndarray) -> Histogram:
    histogram = Histogram()
    seen = np.concatenate(batches)[:0]
    for batch in batches:
        seen = np.concatenate([seen, batch])
        histogram.fit(float(seen.min()), float(seen.max()))
        histogram.add(batch)
    return histogram


def state(histogram: Histogram) -> tuple[int, int, int, list[int]]:
    return histogram.exponent, histogram.start, histogram.zeros, histogram.counts.tolist()


@given(st.lists(VALUES, min_size=1, max_size=5), st.randoms())
def test_order_and_cuts_of_the_data_do_not_matter(batches: list[np.ndarray], random: object) -> None:
    shuffled = list(batches)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert (
        state(histogram_of(*batches)) == state(histogram_of(*shuffled)) == state(histogram_of(np.concatenate(batches)))
    )


@given(VALUES, VALUES)
def test_merging_shards_equals_one_pass_over_both(one: np.ndarray, two: np.ndarray) -> None:
    both = np.concatenate([one, two])
    merged = histogram_of(one)
    merged.merge(histogram_of(two), low=float(both.min()), high=float(both.max()))
    assert state(merged) == state(histogram_of(both))


@given(VALUES)
def test_counts_equal_those_of_numpy_on_the_same_edges(values: np.ndarray) -> None:
    histogram = histogram_of(values)
    expected, _ = np.histogram(values.astype(np.float64), bins=histogram.edges())
    # numpy closes the last bin on the right; nothing lies on that edge here.
    assert histogram.counts.tolist() == expected.tolist()
    assert histogram.total == values.size
    assert histogram.zeros == int((values == 0).sum())


@given(FLOATS, FLOATS)
def test_the_width_is_the_smallest_that_fits(one: float, two: float) -> None:
    low, high = min(one, two), max(one, two)
    exponent = fitting_exponent(low, high)

    def bins(exponent: int) -> int:
        return int(np.floor(np.ldexp(high, -exponent)) - np.floor(np.ldexp(low, -exponent))) + 1

    assert bins(exponent) <= BINS
    if high - low > max(abs(low), abs(high)) / 1000 and exponent > -126:  # else the bounds on numbers and widths decide
        assert bins(exponent - 1) > BINS


def test_a_wide_tensor_uses_at_least_half_of_the_bins() -> None:
    values = np.random.default_rng(0).normal(size=5000).astype(np.float32)
    histogram = histogram_of(values)
    edges = histogram.edges()
    assert (values.max() - values.min()) / histogram.width > BINS / 2 - 1
    assert edges[0] <= values.min()
    assert values.max() < edges[-1]


@given(VALUES)
def test_plain_values_round_trip(values: np.ndarray) -> None:
    histogram = histogram_of(values)
    assert state(Histogram.from_dict(histogram.to_dict())) == state(histogram)


def test_float16_and_float64_values_are_counted_in_the_same_bins() -> None:
    values = np.linspace(-3, 5, 1000).astype(np.float16)
    assert state(histogram_of(values.astype(np.float32))) == state(histogram_of(values.astype(np.float64)))


@pytest.mark.parametrize("counts", ["1 2 -3", "1 " * 3000])
def test_counts_that_are_none_are_refused(counts: str) -> None:
    with pytest.raises(ValueError, match="a histogram has"):
        Histogram.from_dict({"exponent": 0, "start": 0, "zeros": 0, "counts": counts})
