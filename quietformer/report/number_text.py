"""Numbers as people read them: enough digits to compare, no more."""

from __future__ import annotations

import math

MINUS = "\N{MINUS SIGN}"
TIMES = "\N{MULTIPLICATION SIGN}"


def figure(value: float) -> str:
    """Three significant digits, thousands grouped, no exponent between 0.001 and a million."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    if not 1e-3 <= abs(value) < 1e6:
        return f"{value:.2e}".replace("-", MINUS)
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}".replace("-", MINUS)


def tick(value: float) -> str:
    """A value on an axis: no digits that say nothing."""
    text = figure(value)
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text


def score(value: float, *, metric: str) -> str:
    """A task's score: correlations and accuracies with four decimals, perplexities and decibels with two; ``exact`` where it is infinite."""
    if value == math.inf:
        return "exact"
    return f"{value:.{_decimals(metric)}f}".replace("-", MINUS)


def score_with_std(mean: float, std: float, count: int, *, metric: str) -> str:
    """Mean, and the deviation over several calibration subsets where there are several."""
    text = score(mean, metric=metric)
    return f"{text} ± {score(std, metric=metric)}" if count > 1 else text


def change(value: float, *, metric: str) -> str:
    """A signed difference of scores."""
    rounded = round(value, _decimals(metric))
    return f"{'+' if rounded > 0 else ''}{score(rounded + 0.0, metric=metric)}"


def times(ratio: float) -> str:
    """A factor, for example 3.9 times, with the multiplication sign."""
    return f"{ratio:.1f}{TIMES}" if ratio < 100 else f"{ratio:,.0f}{TIMES}"


def megabytes(num_bytes: int) -> str:
    """Size in MB of a million bytes."""
    return f"{num_bytes / 1e6:,.1f} MB"


def milliseconds(value: float) -> str:
    """A latency, three significant digits."""
    return f"{figure(value)} ms"


def duration(seconds: float) -> str:
    """A wall time in the unit that suits it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _decimals(metric: str) -> int:
    return 2 if "perplexity" in metric or "dB" in metric else 4
