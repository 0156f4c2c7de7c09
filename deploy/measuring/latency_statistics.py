"""Statistics of latency samples: trtexec's summary, the speed-up's bootstrap interval, and what makes a run suspicious.

All latencies are in milliseconds. A *round* is a short stretch in which one candidate ran alone; rounds of different
candidates with the same index ran right after one another and are compared with each other, so that slow drift of the
machine (temperature, neighbours) cancels out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Rounds = Sequence[Sequence[float]]
"""Latencies in ms, one inner sequence per round."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LatencySummary:
    """What trtexec prints about a latency, in ms."""

    min: float
    max: float
    mean: float
    median: float
    p90: float
    p95: float
    p99: float
    coefficient_of_variation: float
    """Standard deviation over mean."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeedUp:
    """How many times faster a candidate is than the baseline, by median latency of paired rounds."""

    ratio: float
    low: float
    """Lower end of the bootstrap interval."""
    high: float
    """Upper end of the bootstrap interval."""
    confidence: float = 0.95

    @property
    def is_resolved(self) -> bool:
        """Whether the interval excludes 1, that is, whether any difference was shown at all."""
        return not self.low <= 1.0 <= self.high


def summarize(samples_ms: Sequence[float]) -> LatencySummary:
    """Summary of latencies in ms; percentiles interpolate linearly between samples.

    Raises:
        ValueError: there is no sample.
    """
    if len(samples_ms) == 0:
        raise ValueError("no latency samples to summarize; measure for longer")
    samples_N = np.asarray(samples_ms, dtype=np.float64)
    median, p90, p95, p99 = (float(value) for value in np.percentile(samples_N, [50, 90, 95, 99]))
    mean = float(samples_N.mean())
    return LatencySummary(
        min=float(samples_N.min()),
        max=float(samples_N.max()),
        mean=mean,
        median=median,
        p90=p90,
        p95=p95,
        p99=p99,
        coefficient_of_variation=float(samples_N.std() / mean) if mean > 0 else 0.0,
    )


def bootstrap_speed_up(
    baseline: Rounds, candidate: Rounds, *, confidence: float = 0.95, num_resamples: int = 4000, seed: int = 0
) -> SpeedUp:
    """Speed-up of ``candidate`` over ``baseline`` with a percentile bootstrap interval over paired rounds.

    One ratio of median latencies per pair of rounds; the estimate is the median of these ratios, and whole pairs are
    drawn with replacement for the interval, because samples within a round are not independent.

    Raises:
        ValueError: the two have a different number of rounds, or fewer than two.
    """
    if len(baseline) != len(candidate) or len(baseline) < 2:
        raise ValueError(
            f"a speed-up needs at least two paired rounds; got {len(baseline)} of the baseline"
            f" and {len(candidate)} of the candidate"
        )
    ratios_R = np.array([np.median(b) / np.median(c) for b, c in zip(baseline, candidate, strict=True)])
    generator = np.random.default_rng(seed)
    picks_SR = generator.integers(0, len(ratios_R), size=(num_resamples, len(ratios_R)))
    estimates_S = np.median(ratios_R[picks_SR], axis=1)
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(estimates_S, [tail, 1.0 - tail])
    return SpeedUp(ratio=float(np.median(ratios_R)), low=float(low), high=float(high), confidence=confidence)


def two_levels(
    samples_ms: Sequence[float], *, smallest_gap: float = 0.05, smallest_share: float = 0.1
) -> tuple[float, float, float] | None:
    """The two levels between which latencies jump, as a clock that switches makes them, or None where they do not.

    The samples are split where the squared distance to the two means is least; levels are told apart when their gap is
    five times the spread within them.

    Args:
        samples_ms: latencies.
        smallest_gap: of the levels, relative to the lower one.
        smallest_share: of the samples at the rarer level.

    Returns:
        Lower level and higher level in ms, and the share of samples at the higher one.
    """
    sorted_N = np.sort(np.asarray(samples_ms, np.float64))
    count = len(sorted_N)
    least = max(2, int(np.ceil(smallest_share * count)))
    if count < 2 * least:
        return None
    sizes_S = np.arange(least, count - least + 1)
    sums_N, squares_N = np.cumsum(sorted_N), np.cumsum(sorted_N**2)
    below_S, above_S = sums_N[sizes_S - 1], sums_N[-1] - sums_N[sizes_S - 1]
    # Sum of squared distances to the own mean: sum of squares less size times mean squared.
    within_S = squares_N[-1] - below_S**2 / sizes_S - above_S**2 / (count - sizes_S)
    best = int(np.argmin(within_S))
    size = int(sizes_S[best])
    low, high = float(below_S[best] / size), float(above_S[best] / (count - size))
    spread = float(np.sqrt(max(within_S[best], 0.0) / count))
    if high - low <= max(5.0 * spread, smallest_gap * low):
        return None
    return low, high, (count - size) / count


def noise_warnings(
    name: str,
    repeats: Sequence[Rounds],
    *,
    max_variation: float = 0.10,
    max_drift: float = 0.05,
    spike_factor: float = 3.0,
    min_samples: int = 50,
    what: str = "latency",
) -> tuple[str, ...]:
    """What a reader must know before trusting the latencies of one candidate.

    Args:
        name: Candidate, for the message.
        repeats: Per repeat its rounds.
        max_variation: Largest coefficient of variation that goes unmentioned. (trtexec warns at 2.5 % of GPU time; host
            latency on a shared CPU is never that quiet.)
        max_drift: Largest relative difference between the medians of any two repeats.
        spike_factor: A sample this many times the median is a spike.
        what: What the samples are, in words.
        min_samples: Fewer samples than this make the upper percentiles guesswork.
    """
    medians = [float(np.median([sample for one in rounds for sample in one])) for rounds in repeats]
    samples_N = np.array([sample for rounds in repeats for one in rounds for sample in one])
    summary = summarize(samples_N.tolist())
    warnings = []
    if len(samples_N) < min_samples:
        warnings.append(f"{name}: only {len(samples_N)} samples, so p95 and p99 are rough; measure for longer")
    if (levels := two_levels(samples_N.tolist())) is not None:
        low, high, share = levels
        warnings.append(
            f"{name}: {what} jumps between {low:.3g} ms and {high:.3g} ms ({share:.0%} of the samples); a clock switches"
            " or a neighbour comes and goes, and the median is one of the two"
        )
    elif summary.coefficient_of_variation > max_variation:
        warnings.append(
            f"{name}: {what} varies by {summary.coefficient_of_variation:.0%} (coefficient of variation, over"
            f" {max_variation:.0%}); the machine is busy or its clock moves"
        )
    drift = max(medians) / min(medians) - 1.0
    if drift > max_drift:
        warnings.append(f"{name}: the median moved by {drift:.0%} between repeats; the machine did not hold still")
    spikes = int(np.count_nonzero(samples_N > spike_factor * summary.median))
    if spikes:
        warnings.append(
            f"{name}: {spikes} of {len(samples_N)} samples took over {spike_factor:g} times the median,"
            f" the longest {summary.max:.1f} ms"
        )
    return tuple(warnings)
