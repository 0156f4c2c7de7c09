"""Weights as symmetric integers: exact arithmetic, bounds, and ranges that minimise the squared error."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from deploy.quantization.weights import SMALLEST_SCALE, WeightMethod, quantize_weight

WEIGHTS = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=1, max_dims=3, max_side=8),
    elements=st.floats(-100, 100, width=32, allow_subnormal=False),
)


def _mse(weight: np.ndarray, quantized: np.ndarray, scale: np.ndarray) -> float:
    return float(np.mean((weight - quantized.astype(np.float64) * scale) ** 2))


def _outliers(count: int = 4096) -> np.ndarray:
    weight = np.random.default_rng(0).standard_normal(count).astype(np.float32)
    weight[:4] = [40.0, -35.0, 30.0, 38.0]
    return weight


@given(WEIGHTS, st.integers(2, 16))
def test_minmax_error_is_at_most_half_a_step(weight: np.ndarray, bits: int) -> None:
    quantized, scale = quantize_weight(weight, bits=bits)
    assert np.max(np.abs(weight - quantized * np.float64(scale))) <= scale * 0.5 * (1 + 1e-5)
    assert np.max(np.abs(quantized.astype(int))) <= 2 ** (bits - 1) - 1


@given(WEIGHTS)
def test_quantizing_twice_changes_nothing(weight: np.ndarray) -> None:
    quantized, scale = quantize_weight(weight)
    again, _ = quantize_weight(np.asarray(quantized * scale))
    assert np.array_equal(quantized, again) or scale == np.float32(SMALLEST_SCALE)


@given(WEIGHTS, st.integers(2, 16))
def test_mse_is_never_worse_than_minmax(weight: np.ndarray, bits: int) -> None:
    minmax, mse = (quantize_weight(weight, bits=bits, method=method) for method in ("minmax", "mse"))
    assert _mse(weight, *mse) <= _mse(weight, *minmax) * (1 + 1e-5) + 1e-15


@pytest.mark.parametrize("bits", [4, 6, 8])
def test_mse_matches_an_exhaustive_search(bits: int) -> None:
    weight = _outliers()
    qmax = 2 ** (bits - 1) - 1
    clips = np.linspace(0.02, 1, 5000) * np.abs(weight).max()
    errors = [np.mean((weight - np.clip(np.rint(weight / (c / qmax)), -qmax, qmax) * (c / qmax)) ** 2) for c in clips]
    assert _mse(weight, *quantize_weight(weight, bits=bits, method="mse")) <= min(errors) * 1.01


def test_mse_clips_a_heavy_tail_where_that_pays() -> None:
    weight = _outliers()
    _, wide = quantize_weight(weight, bits=4)
    _, narrow = quantize_weight(weight, bits=4, method="mse")
    assert narrow < wide * 0.9


@pytest.mark.parametrize("method", ["minmax", "mse"])
@pytest.mark.parametrize("axis", [0, 1])
def test_per_channel_equals_quantizing_each_channel(method: WeightMethod, axis: int) -> None:
    weight = np.random.default_rng(1).standard_normal((6, 9)).astype(np.float32)
    quantized, scales = quantize_weight(weight, method=method, axis=axis)
    for channel in range(weight.shape[axis]):
        expected, scale = quantize_weight(np.asarray(weight.take(channel, axis)), method=method)
        assert np.array_equal(quantized.take(channel, axis), expected)
        assert scales[channel] == scale


def test_an_all_zero_weight_has_a_positive_scale_and_zero_integers() -> None:
    for method in ("minmax", "mse"):
        quantized, scale = quantize_weight(np.zeros((3, 4), np.float32), method=method)
        assert not quantized.any()
        assert scale == np.float32(SMALLEST_SCALE)


def test_rounding_is_half_to_even() -> None:
    weight = np.array([127.0, 0.5, 1.5, 2.5, -0.5, -1.5], np.float32)
    assert quantize_weight(weight)[0].tolist() == [127, 0, 2, 2, 0, -2]


@pytest.mark.parametrize(
    ("weight", "options", "message"),
    [
        ([1.0, np.nan], {}, "not finite"),
        ([1.0, np.inf], {}, "not finite"),
        ([1.0], {"bits": 17}, "17 bits for a weight; expected 2 to 16"),
        ([1.0], {"method": "entropy"}, "unknown weight range method 'entropy'; known are minmax, mse"),
    ],
)
def test_bad_input_is_refused(weight: list[float], options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        quantize_weight(np.array(weight, np.float32), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("magnitude", [1.0, 1e-3, 3e-6, 1e-12])
@pytest.mark.parametrize("axis", [None, 1])
def test_float16_scales_lose_nothing_of_the_range_and_the_integers_are_theirs(
    magnitude: float, axis: int | None
) -> None:
    weight = np.random.default_rng(0).normal(scale=magnitude, size=(64, 8)).astype(np.float32)
    integers, scale = quantize_weight(weight, axis=axis, scale_type=np.float16)
    assert scale.dtype == np.float16
    exact = np.abs(weight).max(axis=None if axis is None else 0) / 127
    assert (scale.astype(np.float64) >= exact).all()
    if magnitude >= 1e-2:  # beyond float16's subnormal numbers, its precision is 2^-10
        assert (scale.astype(np.float64) <= exact * (1 + 2**-10)).all()
    error = np.abs(integers * scale.astype(np.float64) - weight)
    assert (error <= scale.astype(np.float64) * 0.5001).all()


@given(WEIGHTS, st.integers(2, 16), st.sampled_from(["minmax", "mse"]), st.sampled_from([None, 0]))
def test_integers_keep_the_order_of_the_weights_zero_and_half_a_step(
    weight: np.ndarray, bits: int, method: WeightMethod, axis: int | None
) -> None:
    integers, scales = quantize_weight(weight, bits=bits, method=method, axis=axis)
    rows = [(weight, integers, scales)]
    if axis == 0:
        rows = [(weight[row], integers[row], scales[row]) for row in range(len(weight))]
    for values, whole, scale in rows:
        assert scale > 0
        assert np.isfinite(scale)
        order = np.argsort(values, axis=None)
        assert (np.diff(whole.ravel()[order].astype(int)) >= 0).all()
        assert not whole[values == 0].any()
        qmax = 2 ** (bits - 1) - 1
        inside = np.abs(values) <= qmax * np.float64(scale)
        error = np.abs(whole * np.float64(scale) - values)
        assert (error[inside] <= np.float64(scale) / 2 * (1 + 1e-5)).all()
        assert (np.abs(whole[~inside].astype(int)) == qmax).all()
