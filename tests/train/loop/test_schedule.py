"""Learning rate, penalty ramp and per-update seeds."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.loop.schedule import learning_rate_factor, ramp_factor, update_seed


def test_the_warm_up_rises_in_equal_parts_and_reaches_the_peak() -> None:
    factors = [learning_rate_factor(step, steps=10, warmup_steps=4) for step in range(4)]
    assert factors == [0.25, 0.5, 0.75, 1.0]


def test_linear_decay_would_reach_zero_at_the_step_after_the_last() -> None:
    factors = [learning_rate_factor(step, steps=6, warmup_steps=2) for step in range(2, 7)]
    assert factors == [1.0, 0.75, 0.5, 0.25, 0.0]


def test_cosine_decay_is_half_way_in_the_middle() -> None:
    factor = learning_rate_factor(50, steps=100, warmup_steps=0, decay="cosine", final_fraction=0.2)
    assert factor == pytest.approx(0.2 + 0.8 * 0.5)


def test_a_constant_rate_stays_at_the_peak() -> None:
    assert learning_rate_factor(99, steps=100, warmup_steps=1, decay="constant") == 1.0


@given(
    steps=st.integers(1, 500),
    share=st.floats(0, 1),
    final=st.floats(0, 1),
    decay=st.sampled_from(["constant", "linear", "cosine"]),
)
def test_the_factor_is_positive_or_zero_and_never_above_one(steps: int, share: float, final: float, decay: str) -> None:
    warmup = math.floor(share * steps)
    for step in range(steps):
        factor = learning_rate_factor(step, steps=steps, warmup_steps=warmup, decay=decay, final_fraction=final)  # type: ignore[arg-type]
        assert 0.0 <= factor <= 1.0


def test_the_ramp_rises_to_one_and_stays() -> None:
    assert [ramp_factor(step, ramp_steps=4) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert ramp_factor(0, ramp_steps=0) == 1.0


def test_update_seeds_differ_by_seed_step_and_part_and_fit_torch() -> None:
    seeds = {update_seed(seed, step=step, part=part) for seed in range(3) for step in range(20) for part in range(4)}
    assert len(seeds) == 240
    assert all(0 <= seed < 2**63 for seed in seeds)
