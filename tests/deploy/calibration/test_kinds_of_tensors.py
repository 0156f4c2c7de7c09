"""Every method on every kind of tensor: usable ranges, never worse than promised, and the same from shards."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from deploy.calibration.range_search import quantization_error
from deploy.calibration.ranges import (
    HISTOGRAM_METHODS,
    Method,
    QuantParams,
    choose_range,
    parse_method,
    quant_params,
)
from deploy.calibration.tensor_statistics import TensorStatistics

METHODS = get_args(Method)
MINILM = Path(__file__).parent / "minilm_statistics.json"
"""Of all-MiniLM-L6-v2 on 256 Wikipedia paragraphs: of each kind of tensor, those that gain least and most by a search."""


def _kinds() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    normal = generator.normal(size=20_000)
    return {
        "two-sided": normal,
        "one-sided": np.abs(normal),
        "negative": -np.abs(normal),
        "sparse": np.where(generator.random(20_000) < 0.95, 0.0, normal),
        "constant": np.full(500, 3.7),
        "negative constant": np.full(500, -1e-3),
        "zero": np.zeros(500),
        "one in a million": np.append(generator.normal(size=999_999), 1000.0),
        "denormal": normal[:1000] * 1e-40,
        "smallest denormals": np.array([1e-45, -1e-45, 0.0, 3e-45]),
        "huge": normal[:1000] * 1e37,
        "largest floats": np.array([3.4e38, -3.4e38, 1.0]),
        "far from zero": 1e6 + normal[:1000],
        "single": np.array([5.0]),
    }


KINDS = tuple(_kinds())


@cache
def _statistics(kind: str) -> TensorStatistics:
    statistics = TensorStatistics(with_histogram=True)
    statistics.update(_kinds()[kind].astype(np.float32))
    return statistics


def _params(statistics: TensorStatistics, method: str, *, bits: int, symmetric: bool) -> QuantParams:
    low, high = choose_range(statistics, method, bits=bits, symmetric=symmetric)
    assert low <= 0 <= high
    return quant_params(low, high, bits=bits, symmetric=symmetric)


def _rounded(values: np.ndarray, params: QuantParams) -> np.ndarray:
    integers = np.clip(np.rint(values / params.scale) + params.zero_point, params.qmin, params.qmax)
    return np.asarray((integers - params.zero_point) * params.scale)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_a_usable_scale_on_every_kind(kind: str, method: str) -> None:
    for bits in (2, 4, 8, 16):
        for symmetric in (True, False):
            params = _params(_statistics(kind), method, bits=bits, symmetric=symmetric)
            assert np.finfo(np.float32).tiny <= params.scale <= np.finfo(np.float32).max
            assert params.qmin <= params.zero_point <= params.qmax
            assert _rounded(np.zeros(1), params) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_searched_ranges_are_not_worse_than_the_extremes_on_the_values_themselves(kind: str) -> None:
    values = _kinds()[kind].astype(np.float32).astype(np.float64)
    for symmetric in (True, False):
        errors = {
            method: float(np.square(_rounded(values, _params(_statistics(kind), method, bits=8, symmetric=symmetric)) - values).mean())
            for method in ("minmax", "mse", "entropy")
        }  # fmt: skip
        # Errors are computed on 2,048 bins: 2 % are what the values' places inside their bins may change.
        assert errors["mse"] <= 1.02 * errors["minmax"]
        assert errors["entropy"] <= 1.02 * errors["minmax"]


def test_one_outlier_in_a_million_is_cut_by_percentile_and_kept_by_the_extremes() -> None:
    statistics = _statistics("one in a million")
    assert choose_range(statistics, "minmax")[1] == 1000
    assert choose_range(statistics, "percentile")[1] < 5
    # In between: a million values lose more by steps of 8 than the one loses by being cut to a sixth.
    assert 100 < choose_range(statistics, "mse")[1] < 250


@pytest.mark.parametrize("kind", KINDS)
def test_shards_in_any_cut_give_the_same_ranges(kind: str) -> None:
    values = _kinds()[kind][:50_000].astype(np.float32)
    whole = TensorStatistics(with_histogram=True)
    whole.update(values)
    cut = max(1, len(values) // 7)
    shards = [values[:cut], values[cut : 2 * cut], values[2 * cut :]]
    merged = TensorStatistics(with_histogram=True)
    for shard in reversed(shards):
        one = TensorStatistics(with_histogram=True)
        one.update(shard)
        merged.merge(one)
    for method in METHODS:
        if method == "running-minmax":  # a mean over batches: depends on how the data was cut by its definition
            continue
        for symmetric in (True, False):
            assert choose_range(merged, method, symmetric=symmetric) == choose_range(whole, method, symmetric=symmetric)


@pytest.mark.parametrize("method", METHODS)
def test_values_that_are_not_finite_are_counted_and_change_no_range(method: str) -> None:
    values = _kinds()["two-sided"][:2000].astype(np.float32)
    broken = values.copy()
    broken[[3, 700, 1500]] = np.nan, np.inf, -np.inf
    found, expected = TensorStatistics(with_histogram=True), TensorStatistics(with_histogram=True)
    found.update(broken)
    expected.update(np.delete(values, [3, 700, 1500]))
    assert found.nonfinite == 3
    assert choose_range(found, method) == choose_range(expected, method)


@pytest.mark.parametrize("method", sorted(HISTOGRAM_METHODS))
@pytest.mark.parametrize("values", [[0.0, 0.0], [0.2, 0.2], [0.0, 1e-6, 0.9999]])
def test_probabilities_are_never_searched(method: str, values: list[float]) -> None:
    statistics = TensorStatistics(unit_interval=True)
    statistics.update(np.array(values, np.float32))
    low, high = choose_range(statistics, method, symmetric=False)
    assert low == 0
    assert high == (pytest.approx(max(values)) if max(values) > 0 else 1.0)
    assert choose_range(statistics, "known-range") == (0.0, 1.0)


def test_the_known_range_is_for_tensors_that_have_one() -> None:
    with pytest.raises(ValueError, match="this tensor's range is not known"):
        choose_range(_statistics("one-sided"), "known-range")


@pytest.mark.parametrize(
    ("text", "parsed"),
    [("mse", ("mse", {})), ("percentile:99.9", ("percentile", {"percentile": 99.9})), ("known-range", ("known-range", {})),
     ("percentile", ("percentile", {"percentile": 99.99})), ("running-minmax:0.5", ("running-minmax", {"momentum": 0.5}))],
)  # fmt: skip
def test_methods_are_read_as_people_write_them(text: str, parsed: tuple[str, dict[str, float]]) -> None:
    assert parse_method(text) == parsed


@pytest.mark.parametrize(
    ("text", "message"),
    [("median", "unknown calibration method"), ("mse:3", "has no effect with method 'mse'"), ("percentile:high", "is no number"),
     ("percentile:20", "expected above 50"), ("known-range:1", "unknown calibration method")],
)  # fmt: skip
def test_methods_that_are_none_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_method(text)


@pytest.mark.parametrize("name", json.loads(MINILM.read_text()))
def test_mse_beats_min_max_on_the_tensors_of_a_real_model(name: str) -> None:
    statistics = TensorStatistics.from_dict(json.loads(MINILM.read_text())[name])
    for bits in (4, 6, 8):
        for symmetric in (True, False):
            errors = [
                quantization_error(statistics, _params(statistics, method, bits=bits, symmetric=symmetric))
                for method in ("mse", "minmax")
            ]
            assert errors[0] < errors[1]


RANGES = st.tuples(st.floats(-1e6, 1e6, width=32), st.floats(-1e6, 1e6, width=32)).map(sorted)


@given(RANGES, st.integers(2, 16), st.booleans(), st.lists(st.floats(-2e6, 2e6), min_size=2, max_size=20))
@settings(deadline=None)
def test_quantizers_are_monotone_exact_at_zero_and_within_half_a_step(
    ends: list[float], bits: int, symmetric: bool, values: list[float]
) -> None:
    params = quant_params(*ends, bits=bits, symmetric=symmetric)
    assume(params.scale < 1e6)
    assert params.scale > 0
    assert np.isfinite(np.float32(params.scale))
    assert _rounded(np.zeros(1), params) == 0
    ordered = np.sort(np.array(values))
    found = _rounded(ordered, params)
    assert (np.diff(found) >= 0).all()
    low, high = ((bound - params.zero_point) * params.scale for bound in (params.qmin, params.qmax))
    inside = np.clip(ordered, low, high)
    assert (np.abs(_rounded(inside, params) - inside) <= params.scale / 2 * (1 + 1e-9)).all()
    assert set(np.unique(found)) <= {low, high} | set(_rounded(inside, params))
    # What the range holds is represented but for half a step at an end that the zero point moved.
    assert low <= min(ends[0], 0) + params.scale / 2 * (1 + 1e-6)
    assert high >= max(ends[1], 0) - params.scale / 2 * (1 + 1e-6)
