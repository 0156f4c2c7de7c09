"""Ranges, grids and rounded tensors against independent formulas."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from train.simulation.quantizer import ObservedRange, activation_grid, check_bits, weight_grid

FINITE = st.floats(-1e4, 1e4, width=32)


@given(low=FINITE, high=FINITE, bits=st.integers(2, 16), seed=st.integers(0, 100))
@example(low=0.0, high=3.899219454143148e-34, bits=2, seed=0)
@settings(deadline=None)
def test_asymmetric_rounding_is_the_papers_formula(low: float, high: float, bits: int, seed: int) -> None:
    low, high = min(low, high), max(low, high)
    x = np.random.default_rng(seed).uniform(1.5 * low - 1, 1.5 * high + 1, 257).astype(np.float32)
    grid = activation_grid(low, high, bits=bits, symmetric=False)
    mine = grid.fake_quantize(torch.from_numpy(x)).numpy()
    span = max(high, 0.0) - min(low, 0.0)
    if span < 2.0**-110:  # too small for a float32 scale: the step of a range of 1, as documented
        span = 1.0
    scale = span / (2**bits - 1)
    zero = round(-min(low, 0.0) / scale)
    q = np.clip(np.rint(x.astype(np.float64) / scale) + zero, 0, 2**bits - 1)
    difference = np.abs(mine - scale * (q - zero))
    # float32 against float64: equal to rounding, but for a value half-way between two integers, which may fall either way
    tolerance = 1e-6 * span + 1e-6 * np.abs(x)
    half_way = np.abs(np.abs(x / scale - np.rint(x / scale)) - 0.5) < 1e-2
    assert (difference[~half_way] <= tolerance[~half_way]).all()
    assert (difference <= scale * 1.001 + tolerance).all()


@given(low=FINITE, high=FINITE, bits=st.integers(2, 16), symmetric=st.booleans())
def test_zero_stays_zero_and_integers_fit_the_width(low: float, high: float, bits: int, symmetric: bool) -> None:
    grid = activation_grid(min(low, high), max(low, high), bits=bits, symmetric=symmetric)
    assert float(grid.fake_quantize(torch.zeros(1))) == 0.0
    assert grid.q_max - grid.q_min == 2**bits - 1
    assert grid.q_min <= grid.zero_point <= grid.q_max
    assert grid.scale > 0


@given(bits=st.integers(2, 8), seed=st.integers(0, 50))
@settings(deadline=None)
def test_rounding_again_changes_nothing(bits: int, seed: int) -> None:
    weight = torch.randn(64, generator=torch.Generator().manual_seed(seed))
    grid = weight_grid(weight, bits=bits, method="minmax")
    once = grid.fake_quantize(weight)
    assert torch.equal(grid.fake_quantize(once), once)
    assert len(set(once.tolist())) <= 2**bits - 1


def test_the_minmax_range_of_a_weight_is_its_largest_value() -> None:
    grid = weight_grid(torch.tensor([0.5, -2.54, 1.0]), bits=8, method="minmax")
    assert grid.scale == pytest.approx(2.54 / 127)
    assert (grid.q_min, grid.q_max) == (-127, 127)


@pytest.mark.parametrize("bits", [3, 4, 8])
def test_the_mse_range_is_as_good_as_an_exhaustive_search(bits: int) -> None:
    generator = torch.Generator().manual_seed(bits)
    weight = torch.randn(20_000, generator=generator)
    weight[:4] = torch.tensor([30.0, -25.0, 20.0, 12.0])

    def error(scale: float) -> float:
        q_max = 2 ** (bits - 1) - 1
        rounded = scale * torch.clamp((weight / scale).round(), -q_max, q_max)
        return float((rounded - weight).square().mean())

    best = min(error(30.0 * ratio / (2 ** (bits - 1) - 1)) for ratio in np.linspace(0.005, 1, 400))
    found = error(weight_grid(weight, bits=bits, method="mse").scale)
    assert found <= 1.02 * best  # the search has 200 candidates, the reference 400
    assert found < error(weight_grid(weight, bits=bits, method="minmax").scale)


@pytest.mark.parametrize("method", ["minmax", "mse"])
def test_an_all_zero_weight_stays_zero(method: str) -> None:
    grid = weight_grid(torch.zeros(3, 4), bits=8, method=method)  # type: ignore[arg-type]
    assert torch.equal(grid.fake_quantize(torch.zeros(3, 4)), torch.zeros(3, 4))


def test_the_running_range_is_set_by_the_first_batch_and_moves_by_a_tenth() -> None:
    observed = ObservedRange("x", "running-minmax")
    observed.update(torch.tensor([-1.0, 3.0]), None)
    observed.update(torch.tensor([-2.0, 13.0]), None)
    assert observed.low_high == pytest.approx((0.9 * -1 + 0.1 * -2, 0.9 * 3 + 0.1 * 13))


def test_the_minmax_range_covers_all_batches() -> None:
    observed = ObservedRange("x", "minmax")
    for values in ([-1.0, 3.0], [-2.0, 1.0]):
        observed.update(torch.tensor(values), None)
    assert observed.low_high == (-2.0, 3.0)


def test_invalid_positions_do_not_count_even_when_they_are_not_finite() -> None:
    observed = ObservedRange("x", "minmax")
    observed.update(torch.tensor([1.0, 99.0, torch.inf, torch.nan]), torch.tensor([True, False, False, False]))
    assert observed.low_high == (0.0, 1.0)


def test_a_valid_value_that_is_not_finite_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"'layer\.0\.scores' has a value that is not finite"):
        ObservedRange("layer.0.scores", "minmax").update(torch.tensor([1.0, torch.nan]), None)


@pytest.mark.parametrize("bits", [1, 17])
def test_other_widths_are_refused(bits: int) -> None:
    with pytest.raises(ValueError, match="expected 2 to 16 bits"):
        check_bits(bits, what="weight_bits")
