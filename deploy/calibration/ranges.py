"""From a tensor's statistics to the range that its integers are spread over, by one of five methods.

A range always contains 0. Tensors in [0, 1] by construction keep their extremes under every method: searching methods
cut the rare large probabilities that matter most.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np

from deploy.calibration.quant_params import SMALLEST_AMAX, QuantParams, quant_params, safe_range, with_zero
from deploy.calibration.range_search import bin_edges, least_divergence_range, least_error_range
from deploy.calibration.tensor_statistics import MOMENTUM, TensorStatistics

__all__ = [
    "HISTOGRAM_METHODS",
    "KNOWN_RANGE",
    "Method",
    "QuantParams",
    "choose_range",
    "method_parameters",
    "parse_method",
    "quant_params",
    "range_warning",
]

Method = Literal["minmax", "running-minmax", "percentile", "mse", "entropy"]

KNOWN_RANGE = "known-range"
"""For single tensors only: [0, 1] whatever was seen, of a tensor that lies there by construction."""
HISTOGRAM_METHODS: frozenset[Method] = frozenset({"percentile", "mse", "entropy"})
"""Methods that need the histogram."""
PERCENTILE = 99.99
"""Default share of values kept at each end, in percent."""
_DEFAULTS: dict[Method, dict[str, float]] = {
    "minmax": {},
    "running-minmax": {"momentum": MOMENTUM},
    "percentile": {"percentile": PERCENTILE},
    "mse": {},
    "entropy": {},
}


def method_parameters(method: str, given: dict[str, Any] | None = None) -> dict[str, float]:
    """All parameters of a method, defaults filled in.

    Raises:
        ValueError: an unknown method, a parameter that it does not read, or a value out of range.
    """
    if method not in get_args(Method):
        raise ValueError(f"unknown calibration method '{method}'; known are {', '.join(get_args(Method))}")
    defaults = _DEFAULTS[method]  # type: ignore[index]  # checked above
    given = given or {}
    if unknown := sorted(set(given) - set(defaults)):
        raise ValueError(
            f"{unknown[0]} has no effect with method '{method}', which reads {', '.join(defaults) or 'no parameter'}"
        )
    chosen = defaults | {name: float(value) for name, value in given.items()}
    if not 50.0 < chosen.get("percentile", 100.0) <= 100.0:
        raise ValueError(f"percentile is {chosen['percentile']}; expected above 50 and at most 100")
    if not 0.0 <= chosen.get("momentum", 0.0) < 1.0:
        raise ValueError(f"momentum is {chosen['momentum']}; expected at least 0 and below 1")
    return chosen


def parse_method(text: str) -> tuple[str, dict[str, float]]:
    """A method of single tensors as people write it: ``mse``, ``percentile:99.9``, ``known-range``; with its parameters.

    Raises:
        ValueError: no such method, a value that is no number or out of range, or one that the method does not read.
    """
    method, separator, value = text.partition(":")
    if method == KNOWN_RANGE and not separator:
        return method, {}
    if not separator:
        return method, method_parameters(method)
    try:
        number = float(value)
    except ValueError as error:
        raise ValueError(f"'{value}' of method '{text}' is no number; expected for example percentile:99.9") from error
    return method, method_parameters(method, {"percentile" if method != "running-minmax" else "momentum": number})


def choose_range(
    statistics: TensorStatistics, method: str, *, bits: int = 8, symmetric: bool = True, percentile: float = PERCENTILE
) -> tuple[float, float]:
    """The range of a tensor by one method; it contains 0 and is never empty.

    ``minmax``: the extremes. ``running-minmax``: the running extremes. ``percentile``: cut each end so that
    ``percentile`` % of the values lie inside (of the absolute values when ``symmetric``). ``mse``: least squared error
    of quantization. ``known-range``: [0, 1], of a tensor that lies there by construction. ``entropy``: least Kullback-Leibler divergence among the ranges whose squared error is not above
    that of the extremes.

    Args:
        statistics: of the tensor; the searching methods need the histogram.
        method: one of :data:`Method`, or :data:`KNOWN_RANGE`.
        bits: width of the integers.
        symmetric: int with zero point 0, else uint with a free zero point.
        percentile: read by ``percentile`` only, in (50, 100].

    Raises:
        ValueError: unknown method, no values seen, no histogram where one is needed, or a range that is not known.
    """
    if method == KNOWN_RANGE:
        if not statistics.unit_interval:
            raise ValueError(f"method '{KNOWN_RANGE}' is for probabilities and gates; this tensor's range is not known")
        return 0.0, 1.0
    chosen = method_parameters(method, {"percentile": percentile} if method == "percentile" else None)
    if not statistics.count:
        raise ValueError("the tensor has no values: every position was padding or no batch was run")
    low, high = with_zero(statistics.low, statistics.high)
    if method == "running-minmax":
        low, high = with_zero(statistics.running_low, statistics.running_high)
    elif method in HISTOGRAM_METHODS and not statistics.unit_interval and statistics.low < statistics.high:
        if statistics.histogram is None:
            raise ValueError(f"method '{method}' needs histograms; this calibration kept only the extremes")
        if method == "percentile":
            low, high = _percentile_range(statistics, chosen["percentile"], symmetric=symmetric)
        elif method == "mse":
            low, high = least_error_range(statistics, bits=bits, symmetric=symmetric)
        else:
            low, high = least_divergence_range(statistics, bits=bits, symmetric=symmetric)
    if statistics.unit_interval:
        low, high = 0.0, min(1.0, high)
    return safe_range(low, high, symmetric=symmetric)


def range_warning(statistics: TensorStatistics) -> str | None:
    """Why a tensor's range deserves a look, or None: it never varied, so nothing is known of its real range."""
    if not statistics.count:
        return "has no values: every position was padding"
    if statistics.amax < SMALLEST_AMAX:
        return "was 0 throughout; its range is set to 1"
    if statistics.low == statistics.high:
        return f"was {statistics.low:g} throughout; its range is set to contain 0 and that value"
    return None


def _percentile_range(statistics: TensorStatistics, percentile: float, *, symmetric: bool) -> tuple[float, float]:
    """Ends beyond which ``100 - percentile`` % of the values lie; values are even within a bin, exact zeros are at 0."""
    histogram = statistics.histogram
    assert histogram is not None
    low, high = with_zero(statistics.low, statistics.high)
    edges, counts = bin_edges(statistics), histogram.counts.copy()
    zero_bin = -histogram.start
    if histogram.zeros:
        counts[zero_bin] -= histogram.zeros
    below = np.concatenate(([0], np.cumsum(counts)))
    kept = percentile / 100 * histogram.total
    if symmetric:
        # How many values other than 0 have |x| <= t, at the absolute values of all edges.
        ends = np.unique(np.abs(np.concatenate((edges, [0.0]))))
        inside = [np.interp(at, edges, below, left=0, right=below[-1]) for at in (ends, -ends)]
        cut = float(np.interp(kept, histogram.zeros + np.maximum.accumulate(inside[0] - inside[1]), ends))
        # More zeros than the percentile keeps: the cut would swallow the whole tensor.
        return (max(low, -cut), min(high, cut)) if cut > 0 else (low, high)
    if histogram.zeros:
        edges = np.insert(edges, zero_bin, 0.0)
        below = np.concatenate((below[: zero_bin + 1], below[zero_bin:] + histogram.zeros))
    quantiles = np.interp([histogram.total - kept, kept], below, edges)
    cut_low, cut_high = with_zero(float(quantiles[0]), float(quantiles[1]))
    return (cut_low, cut_high) if cut_low < cut_high else (low, high)
