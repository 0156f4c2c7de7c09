"""Pairs of weights that a 16-bit sum holds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from deploy.quantization.pair_sums import bounded_in_pairs, fit_in_any_pairs, fit_in_pairs

INTEGERS = arrays.arrays(np.int8, st.tuples(st.integers(1, 9), st.integers(1, 4)), elements=st.integers(-127, 127))


@given(weight=INTEGERS, activations=arrays.arrays(np.uint8, 9))
def test_bounded_pairs_never_leave_16_bits(weight: np.ndarray, activations: np.ndarray) -> None:
    bounded = bounded_in_pairs(weight).astype(np.int64)
    assert fit_in_pairs(bounded.astype(np.int8))
    products = activations[: len(weight), None].astype(np.int64) * bounded
    for start in range(0, len(weight) - 1, 2):
        assert (np.abs(products[start : start + 2].sum(axis=0)) <= 2**15 - 1).all()


@given(weight=INTEGERS)
def test_only_pairs_that_are_too_large_change_and_no_weight_changes_sign(weight: np.ndarray) -> None:
    bounded = bounded_in_pairs(weight)
    assert bounded.dtype == np.int8
    assert (np.abs(bounded.astype(int)) <= np.abs(weight.astype(int))).all()
    assert (bounded.astype(int) * weight >= 0).all()
    even = len(weight) // 2 * 2
    first, second = (weight[start:even:2].astype(int) for start in (0, 1))
    fits = (np.abs(first + second) <= 128) | (first * second <= 0)
    changed = bounded != weight
    assert not changed[even:].any()
    for start in (0, 1):
        assert not (changed[start:even:2] & fits).any()
    if fits.all():
        assert fit_in_pairs(weight)
    else:
        assert not fit_in_pairs(weight)


@pytest.mark.parametrize(
    ("pair", "expected"),
    [((127, 127), (64, 64)), ((127, 2), (126, 2)), ((-127, -127), (-64, -64)), ((1, 127), (1, 127)), ((127, -127), (127, -127)),
     ((3, 127), (2, 126)), ((-100, -31), (-98, -30))],
)  # fmt: skip
def test_the_excess_is_shared(pair: tuple[int, int], expected: tuple[int, int]) -> None:
    weight = np.array(pair, np.int8)[:, None]
    assert bounded_in_pairs(weight)[:, 0].tolist() == list(expected)


def test_weights_of_seven_bits_fit_in_any_order() -> None:
    assert fit_in_any_pairs(np.array([[64, -64, 64]], np.int8))
    assert not fit_in_any_pairs(np.array([[65, 0]], np.int8))
    assert fit_in_any_pairs(np.empty((0, 3), np.int8))
    assert fit_in_pairs(np.array([[-128], [0]], np.int8))
