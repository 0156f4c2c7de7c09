"""Ranges: what every method promises, and the corners where others fail."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from deploy.calibration.range_search import quantization_error
from deploy.calibration.ranges import Method, QuantParams, choose_range, method_parameters, quant_params, range_warning
from deploy.calibration.tensor_statistics import TensorStatistics

METHODS = get_args(Method)
VALUES = arrays(np.float32, st.integers(1, 200), elements=st.floats(-1e3, 1e3, width=32))
GENERATOR = np.random.default_rng(0)


def statistics_of(values: np.ndarray, *, unit_interval: bool = False) -> TensorStatistics:
    statistics = TensorStatistics(with_histogram=True, unit_interval=unit_interval)
    statistics.update(np.asarray(values, dtype=np.float32))
    return statistics


def fake_quantized(values: np.ndarray, params: QuantParams) -> np.ndarray:
    integers = np.clip(np.round(values.astype(np.float64) / params.scale) + params.zero_point, params.qmin, params.qmax)
    return np.asarray((integers - params.zero_point) * params.scale)


@given(VALUES, st.sampled_from(METHODS), st.booleans(), st.sampled_from([4, 8]))
@settings(max_examples=60, deadline=None)
def test_every_range_contains_zero_and_gives_a_usable_scale(
    values: np.ndarray, method: str, symmetric: bool, bits: int
) -> None:
    low, high = choose_range(statistics_of(values), method, bits=bits, symmetric=symmetric)
    assert low <= 0 <= high
    assert low < high
    params = quant_params(low, high, bits=bits, symmetric=symmetric)
    assert params.scale > 0
    assert np.float32(params.scale) == params.scale
    assert params.qmin <= params.zero_point <= params.qmax
    assert fake_quantized(np.zeros(1), params) == 0


@given(VALUES, st.booleans(), st.sampled_from([3, 4, 8]))
@settings(max_examples=60, deadline=None)
def test_the_mse_range_is_never_worse_than_the_extremes(values: np.ndarray, symmetric: bool, bits: int) -> None:
    statistics = statistics_of(values)
    errors = {
        method: quantization_error(
            statistics,
            quant_params(
                *choose_range(statistics, method, bits=bits, symmetric=symmetric), bits=bits, symmetric=symmetric
            ),
        )
        for method in ("minmax", "mse", "entropy")
    }
    assert errors["mse"] <= errors["minmax"]
    assert errors["entropy"] <= errors["minmax"]


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("share", [1.0, 0.5, 0.1])
def test_the_error_on_the_histogram_is_that_of_the_values(symmetric: bool, share: float) -> None:
    values = GENERATOR.normal(size=50_000)
    values[:20] *= 8
    statistics = statistics_of(values)
    params = quant_params(statistics.low * share, statistics.high * share, symmetric=symmetric)
    expected = np.mean((fake_quantized(values, params) - values) ** 2)
    # Values are taken as even within a bin: exact up to the sampling noise of 50,000 values.
    assert quantization_error(statistics, params) == pytest.approx(expected, rel=0.02)


def test_the_mse_range_beats_the_extremes_on_a_tensor_with_an_outlier() -> None:
    values = np.concatenate([GENERATOR.normal(size=100_000), [60.0]])
    statistics = statistics_of(values)
    low, high = choose_range(statistics, "mse")
    assert high < 45
    gains = [
        np.mean((fake_quantized(values, quant_params(*ends)) - values) ** 2) for ends in ((low, high), (-60.0, 60.0))
    ]
    assert gains[0] < 0.8 * gains[1]


@pytest.mark.parametrize("percentile", [99.0, 99.9, 99.99])
def test_percentile_cuts_what_numpy_cuts(percentile: float) -> None:
    values = GENERATOR.normal(size=200_000).astype(np.float32)
    statistics = statistics_of(values)
    low, high = choose_range(statistics, "percentile", symmetric=False, percentile=percentile)
    width = 2 * statistics.histogram.width  # type: ignore[union-attr]  # statistics_of keeps one
    assert low == pytest.approx(np.percentile(values, 100 - percentile), abs=width)
    assert high == pytest.approx(np.percentile(values, percentile), abs=width)
    cut = max(choose_range(statistics, "percentile", percentile=percentile))
    assert cut == pytest.approx(np.percentile(np.abs(values), percentile), abs=width)


@pytest.mark.parametrize("symmetric", [True, False])
def test_sparse_one_sided_tensors_do_not_collapse(symmetric: bool) -> None:
    values = np.where(GENERATOR.random(100_000) < 0.95, 0.0, GENERATOR.beta(0.3, 3.0, 100_000))
    statistics = statistics_of(values)
    for method in ("entropy", "mse", "percentile"):
        _, high = choose_range(statistics, method, symmetric=symmetric)
        assert high > 0.5 * values.max(), method
    mostly_zero = np.zeros(100_000)
    mostly_zero[:3] = 0.7
    assert choose_range(statistics_of(mostly_zero), "percentile", symmetric=symmetric)[1] == pytest.approx(0.7)


@pytest.mark.parametrize("method", METHODS)
def test_probabilities_keep_their_extremes_under_every_method(method: str) -> None:
    values = np.where(GENERATOR.random(10_000) < 0.999, 0.001, 0.97)
    statistics = statistics_of(values, unit_interval=True)
    low, high = choose_range(statistics, method, symmetric=False)
    assert (low, high) == pytest.approx((0.0, 0.97))
    above = statistics_of(values * 1.1, unit_interval=True)
    assert choose_range(above, method) == (0.0, 1.0)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_tensors_that_never_varied_get_a_warning_and_a_safe_scale(method: str, symmetric: bool) -> None:
    dead, constant = statistics_of(np.zeros(9)), statistics_of(np.full(9, -3.0))
    assert "was 0 throughout" in str(range_warning(dead))
    assert "was -3 throughout" in str(range_warning(constant))
    assert quant_params(*choose_range(dead, method, symmetric=symmetric), symmetric=symmetric).scale == pytest.approx(
        1 / (127 if symmetric else 255)
    )
    low, high = choose_range(constant, method, symmetric=symmetric)
    assert (low, high) == (-3.0, 0.0)
    params = quant_params(low, high, symmetric=symmetric)
    assert fake_quantized(np.array([-3.0]), params) == pytest.approx(-3.0, rel=1e-5)
    assert range_warning(statistics_of(np.array([1.0, 2.0]))) is None


def test_subnormal_tensors_count_as_zero() -> None:
    statistics = statistics_of(np.array([1e-40, -1e-40]))
    assert quant_params(*choose_range(statistics, "minmax")).scale == pytest.approx(1 / 127)
    assert range_warning(statistics) is not None


def test_symmetric_and_asymmetric_parameters() -> None:
    assert quant_params(-6.35, 12.7) == QuantParams(scale=float(np.float32(0.1)), zero_point=0, qmin=-128, qmax=127)
    params = quant_params(-1.0, 1.55, symmetric=False)
    assert (params.zero_point, params.qmin, params.qmax) == (100, 0, 255)
    assert params.scale == pytest.approx(0.01)
    assert quant_params(-1, 7, bits=4).scale == pytest.approx(1.0)
    assert quant_params(2.0, 3.0, symmetric=False).zero_point == 0  # widened to contain 0


@pytest.mark.parametrize(
    ("low", "high", "bits"), [(1.0, -1.0, 8), (0.0, np.inf, 8), (np.nan, 1.0, 8), (0.0, 1.0, 1), (0.0, 1.0, 17)]
)
def test_impossible_ranges_and_widths_are_refused(low: float, high: float, bits: int) -> None:
    with pytest.raises(ValueError, match=r"no range|bits is"):
        quant_params(low, high, bits=bits)


def test_methods_and_parameters_are_checked() -> None:
    assert method_parameters("percentile") == {"percentile": 99.99}
    assert method_parameters("running-minmax", {"momentum": 0.5}) == {"momentum": 0.5}
    for method, given_parameters, message in (
        ("median", {}, "unknown calibration method 'median'; known are minmax, running-minmax"),
        ("minmax", {"percentile": 99}, "percentile has no effect with method 'minmax', which reads no parameter"),
        ("percentile", {"percentile": 40}, "percentile is 40"),
        ("running-minmax", {"momentum": 1.5}, "momentum is 1.5"),
    ):
        with pytest.raises(ValueError, match=message):
            method_parameters(method, given_parameters)


def test_statistics_without_values_or_histogram_are_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        choose_range(TensorStatistics(), "minmax")
    only_extremes = TensorStatistics()
    only_extremes.update(np.arange(3.0))
    with pytest.raises(ValueError, match="needs histograms"):
        choose_range(only_extremes, "mse")


def test_a_tensor_far_from_zero_is_searched_in_bounded_time() -> None:
    statistics = statistics_of(GENERATOR.normal(1e5, 0.5, 1000))
    for method in METHODS:
        low, high = choose_range(statistics, method)
        assert low == 0
        assert high > 9.9e4
