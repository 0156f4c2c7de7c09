"""Ranges found by search on a histogram: least squared error, and least divergence.

Legend: N bins from the first filled one to the last, P bins that hold one value only. Values count as spread evenly within their bin, except exact
zeros, which every range represents without error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from deploy.calibration.histogram import BINS
from deploy.calibration.quant_params import QuantParams, quant_params, with_zero
from deploy.calibration.tensor_statistics import TensorStatistics

Floats = NDArray[np.float64]

_COARSE_SHARES: list[float] = (np.arange(1, 65) / 64).tolist()
_FINE_STEPS: list[float] = (np.arange(-8, 9) / 8 / 64).tolist()
_DIVERGENCE_STRIDE = 8
"""Bins between two thresholds that the divergence is computed for."""


def bin_edges(statistics: TensorStatistics) -> Floats:
    """Edges of the histogram's bins, (2049,), the outermost cut to the extremes that were really seen."""
    assert statistics.histogram is not None
    return np.clip(statistics.histogram.edges(), statistics.low, statistics.high)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Density:
    """A histogram as a density that is constant between edges, exact zeros left out."""

    edges: Floats
    """From the smallest value to the largest, (N + 1,)."""
    density: Floats
    """Values per unit of x, (N,); 0 in a bin that holds one value only."""
    points: Floats
    """Bins that hold one value only, (P,): all of a constant tensor."""
    point_counts: Floats
    """Values there, (P,)."""
    total: int
    """Values, zeros included."""

    @classmethod
    def of(cls, statistics: TensorStatistics) -> Self:
        """Density of a tensor."""
        histogram = statistics.histogram
        assert histogram is not None
        edges, counts = bin_edges(statistics), histogram.counts.astype(np.float64)
        if histogram.zeros:
            counts[-histogram.start] -= histogram.zeros
        filled = np.flatnonzero(counts)
        first, last = (filled[0], filled[-1] + 1) if filled.size else (0, 0)
        edges, counts = edges[first : last + 1], counts[first:last]
        widths = np.diff(edges)
        wide = widths > 0
        return cls(
            edges=edges,
            density=np.divide(counts, widths, out=np.zeros_like(counts), where=wide),
            points=edges[:-1][~wide],
            point_counts=counts[~wide],
            total=statistics.count,
        )

    def error(self, params: QuantParams) -> float:
        """Mean squared error of rounding and clipping with ``params``.

        The primitive of the squared error is ``n * scale^3 / 12 + (x - n * scale)^3 / 3`` with ``n = clip(round(x /
        scale))``: exact inside each bin, however wide the bin is against the scale.
        """
        lowest, highest = params.qmin - params.zero_point, params.qmax - params.zero_point
        steps = np.clip(np.round(self.edges / params.scale), lowest, highest)
        rests = self.edges - steps * params.scale
        primitive = steps * (params.scale**3 / 12) + rests * rests * rests / 3
        spread = np.maximum(np.diff(primitive), 0.0) @ self.density
        moved = self.points - np.clip(np.round(self.points / params.scale), lowest, highest) * params.scale
        return float(spread + (moved * moved) @ self.point_counts) / self.total


def quantization_error(statistics: TensorStatistics, params: QuantParams) -> float:
    """Mean squared error that rounding and clipping with ``params`` makes on the histogram of a tensor."""
    return _Density.of(statistics).error(params)


def least_error_range(statistics: TensorStatistics, *, bits: int, symmetric: bool) -> tuple[float, float]:
    """The range of least squared error; never worse than the extremes on the same histogram.

    A coarse search shrinks both ends together, then each alone (what GELU gives has most of its values at one end); fine ones
    then move each end of the best alone. Only the larger end matters when ``symmetric``.
    """
    low, high = with_zero(statistics.low, statistics.high)
    density = _Density.of(statistics)

    def error(candidate: tuple[float, float]) -> float:
        return density.error(quant_params(*candidate, bits=bits, symmetric=symmetric))

    best, least, best_shares = (low, high), error((low, high)), (1.0, 1.0)

    def try_shares(trial: list[tuple[float, float]]) -> None:
        nonlocal best, least, best_shares
        for share_low, share_high in trial:
            candidate = (low * share_low, high * share_high)
            if 0 < share_low <= 1 and 0 < share_high <= 1 and (found := error(candidate)) < least:
                best, least, best_shares = candidate, found, (share_low, share_high)

    try_shares([(share, share) for share in _COARSE_SHARES])
    if not symmetric and low < 0 < high:
        try_shares([(1.0, share) for share in _COARSE_SHARES])
        try_shares([(share, 1.0) for share in _COARSE_SHARES])
    for move_low, move_high in [(1.0, 1.0)] if symmetric else [(1.0, 0.0), (0.0, 1.0)] * 2:
        start_low, start_high = best_shares
        try_shares([(start_low + step * move_low, start_high + step * move_high) for step in _FINE_STEPS])
    return best


def least_divergence_range(statistics: TensorStatistics, *, bits: int, symmetric: bool) -> tuple[float, float]:
    """The range of least Kullback-Leibler divergence between the values and their quantized form.

    Absolute values are cut at a threshold; what lies beyond is counted at the threshold. Exact zeros are left out, as
    they are never moved and would drown everything else in a sparse tensor. A threshold whose squared error is above
    that of the extremes is not a candidate: divergence alone cannot see how far a value is moved.
    """
    assert statistics.histogram is not None
    low, high = with_zero(statistics.low, statistics.high)
    magnitudes, width = _magnitudes(statistics)
    density = _Density.of(statistics)
    limit = density.error(quant_params(low, high, bits=bits, symmetric=symmetric))
    best, least = (low, high), np.inf
    smallest = 2 ** (bits - 1) if symmetric else 2**bits
    for bins in range(len(magnitudes), smallest - 1, -_DIVERGENCE_STRIDE):
        threshold = bins * width
        candidate = (max(low, -threshold), min(high, threshold))
        levels = smallest if symmetric else max(1, round(smallest * threshold / (candidate[1] - candidate[0])))
        if levels > bins:
            continue
        divergence = _divergence(magnitudes, bins, levels)
        if divergence >= least:
            continue
        if density.error(quant_params(*candidate, bits=bits, symmetric=symmetric)) <= limit:
            best, least = candidate, divergence
    return best


def _magnitudes(statistics: TensorStatistics) -> tuple[Floats, float]:
    """Counts of |x| in at most 2,048 bins from 0 up to the last filled one, exact zeros left out; and the bin width."""
    histogram = statistics.histogram
    assert histogram is not None
    filled = np.flatnonzero(histogram.counts)
    numbers = histogram.start + filled
    # Bin i >= 0 holds [i, i + 1) widths, bin i < 0 holds |x| in (-i - 1, -i].
    numbers = np.where(numbers >= 0, numbers, -numbers - 1)
    # A tensor far from 0 has its bins far from 0 as well: coarser ones then.
    shift = max(0, int(numbers.max()).bit_length() - (BINS.bit_length() - 1))
    folded = np.zeros((int(numbers.max()) >> shift) + 1)
    np.add.at(folded, numbers >> shift, histogram.counts[filled])
    folded[0] -= histogram.zeros
    return folded, histogram.width * 2.0**shift


def _divergence(magnitudes: Floats, bins: int, levels: int) -> float:
    """KL divergence of the first ``bins`` bins, clipped mass on the last, from the same averaged into ``levels`` groups."""
    inside = magnitudes[:bins]
    reference = inside.copy()
    reference[-1] += magnitudes[bins:].sum()
    filled = reference > 0
    firsts = (np.arange(levels) * bins) // levels
    sums = np.add.reduceat(inside, firsts)
    holders = np.add.reduceat(filled.astype(np.float64), firsts)
    means = np.divide(sums, holders, out=np.zeros_like(sums), where=holders > 0)
    quantized = np.repeat(means, np.diff(np.append(firsts, bins)))[filled]
    reference = reference[filled]
    if not quantized.all():  # clipped mass where nothing is inside
        return np.inf
    reference, quantized = reference / reference.sum(), quantized / quantized.sum()
    return float((reference * np.log(reference / quantized)).sum())
