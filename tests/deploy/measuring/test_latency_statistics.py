import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.measuring.latency_statistics import bootstrap_speed_up, noise_warnings, summarize, two_levels

positive = st.floats(0.01, 1e4)


def _rounds(generator: np.random.Generator, level_R: np.ndarray, *, noise: float, size: int = 20) -> list[list[float]]:
    return [(level * (1 + noise * generator.exponential(size=size))).tolist() for level in level_R]


@given(st.lists(positive, min_size=1, max_size=200))
def test_summary_equals_numpy_and_is_ordered(samples: list[float]) -> None:
    summary = summarize(samples)
    assert summary.median == pytest.approx(np.median(samples))
    assert summary.p95 == pytest.approx(np.quantile(samples, 0.95))
    assert summary.mean == pytest.approx(np.mean(samples))
    ordered = [summary.min, summary.median, summary.p90, summary.p95, summary.p99, summary.max]
    assert ordered == sorted(ordered)


def test_summary_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no latency samples"):
        summarize([])


def test_interval_covers_a_known_ratio_although_the_machine_drifts() -> None:
    # 40 paired rounds under a drift of 60 %, true ratio 3: a 95 % interval must cover it in about 95 % of runs.
    drift_R = np.linspace(1.0, 1.6, 40)
    covered, widths = 0, []
    for seed in range(200):
        generator = np.random.default_rng(seed)
        level_R = drift_R * (1 + 0.03 * generator.standard_normal(40))
        slow = _rounds(generator, 9.0 * level_R * (1 + 0.02 * generator.standard_normal(40)), noise=0.05)
        fast = _rounds(generator, 3.0 * level_R, noise=0.05)
        speed_up = bootstrap_speed_up(slow, fast, num_resamples=500, seed=seed)
        covered += speed_up.low <= 3.0 <= speed_up.high
        widths.append(speed_up.high - speed_up.low)
    assert covered >= 180, covered
    assert np.mean(widths) < 0.1


def test_paired_rounds_cancel_a_mode_that_both_candidates_share() -> None:
    generator = np.random.default_rng(0)
    mode_R = np.where(generator.random(30) < 0.5, 1.0, 2.5)
    speed_up = bootstrap_speed_up(
        _rounds(generator, 8.0 * mode_R, noise=0.01), _rounds(generator, 4.0 * mode_R, noise=0.01)
    )
    assert speed_up.ratio == pytest.approx(2.0, rel=0.02)
    assert speed_up.high - speed_up.low < 0.05


def test_a_few_ruined_rounds_do_not_move_the_estimate() -> None:
    generator = np.random.default_rng(1)
    fast_level_R = np.full(30, 4.0)
    fast_level_R[[3, 17]] = 70.0
    speed_up = bootstrap_speed_up(
        _rounds(generator, np.full(30, 8.0), noise=0.01), _rounds(generator, fast_level_R, noise=0.01)
    )
    assert speed_up.ratio == pytest.approx(2.0, rel=0.01)
    assert speed_up.low > 1.9


def test_bootstrap_is_deterministic_and_same_speed_is_not_resolved() -> None:
    generator = np.random.default_rng(2)
    first, second = (_rounds(generator, np.full(12, 5.0), noise=0.1) for _ in range(2))
    speed_up = bootstrap_speed_up(first, second, seed=7)
    assert speed_up == bootstrap_speed_up(first, second, seed=7)
    assert not speed_up.is_resolved
    assert bootstrap_speed_up([[2.0]] * 3, [[1.0]] * 3).is_resolved


def test_unpaired_or_single_rounds_are_refused() -> None:
    for baseline, candidate in (([[1.0]], [[1.0]]), ([[1.0], [2.0]], [[1.0]])):
        with pytest.raises(ValueError, match="at least two paired rounds"):
            bootstrap_speed_up(baseline, candidate)


def test_a_quiet_run_gives_no_warning() -> None:
    generator = np.random.default_rng(3)
    repeats = [_rounds(generator, np.full(4, 5.0), noise=0.02) for _ in range(3)]
    assert noise_warnings("int8", repeats) == ()


def test_bimodal_drifting_spiky_and_short_runs_are_told_apart() -> None:
    generator = np.random.default_rng(4)
    bimodal = [_rounds(generator, np.array([5.0, 8.0, 5.0, 8.0]), noise=0.01) for _ in range(3)]
    drifting = [_rounds(generator, np.full(4, level), noise=0.01) for level in (5.0, 5.2, 5.5)]
    spiky = [_rounds(generator, np.full(4, 2.0), noise=0.01) for _ in range(3)]
    spiky[1][2][5] = 70.0
    [bimodal_warning] = noise_warnings("a", bimodal)
    assert "latency jumps between 5" in bimodal_warning
    assert "and 8.1 ms (50% of the samples)" in bimodal_warning
    [wide_warning] = noise_warnings("a", [[generator.uniform(4.0, 8.0, 200).tolist()] for _ in range(3)], max_drift=0.1)
    assert "varies by 1" in wide_warning
    [drift_warning] = noise_warnings("a", drifting)
    assert "moved by 10%" in drift_warning
    assert any(
        "1 of 240 samples took over 3 times the median, the longest 70.0 ms" in w for w in noise_warnings("a", spiky)
    )
    [short_warning] = noise_warnings("a", [[[5.0, 5.0]], [[5.0]]])
    assert "only 3 samples" in short_warning


@given(
    st.sampled_from(["normal", "uniform", "exponential"]),
    st.integers(20, 400),
    st.integers(0, 10_000),
    st.floats(0.001, 0.3),
)
def test_one_level_with_any_spread_is_not_called_two(kind: str, size: int, seed: int, spread: float) -> None:
    draw = getattr(np.random.default_rng(seed), kind)(size=size)
    assert two_levels((10.0 * (1 + spread * draw / 4)).tolist()) is None or kind == "exponential"


@given(st.floats(1.06, 5.0), st.floats(0.25, 0.75), st.integers(0, 10_000))
def test_two_levels_are_found_with_their_shares(ratio: float, share: float, seed: int) -> None:
    generator = np.random.default_rng(seed)
    high_N = generator.random(200) < share
    samples_N = np.where(high_N, ratio, 1.0) * (1 + 0.002 * generator.standard_normal(200))
    found = two_levels(samples_N.tolist())
    assert found is not None
    assert found == pytest.approx((1.0, ratio, high_N.mean()), rel=0.01)
