"""Which figures belong side by side: the same configuration of the original and of the trained model."""

from __future__ import annotations

from dataclasses import dataclass

from deploy.measuring.bench_report import BenchReport, CandidateTiming
from deploy.measuring.compare import CompareReport, CompareRow
from quietformer.report.content import RunReport


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantizedPair:
    """The same profile and backend on the original model and on the retrofitted one."""

    before: CompareRow | None
    after: CompareRow

    @property
    def where(self) -> str:
        """Profile and backend in words."""
        return f"{self.after.profile} profile on {self.after.backend}"


def compared_arm(report: RunReport, comparison: CompareReport) -> str | None:
    """Name that the chosen arm's model goes by in a comparison; None when nothing was trained, or when there is no other model to compare it with.

    A comparison may call it by the arm's name or just by one word such as ``retrofitted``.
    """
    names = {row.arm for row in comparison.rows} - {comparison.baseline.arm}
    if report.chosen_arm is None or not names:
        return None
    return report.chosen_arm.name if report.chosen_arm.name in names or len(names) != 1 else names.pop()


def quantized_pairs(comparison: CompareReport, *, chosen: str | None) -> list[QuantizedPair]:
    """Every quantized row of the chosen model, beside the original's row of the same profile and backend.

    Without a chosen arm (nothing was trained) the original's own rows stand alone.
    """
    original = comparison.baseline.arm
    quantized = [row for row in comparison.rows[1:] if row.profile is not None]
    before = {(row.profile, row.backend): row for row in quantized if row.arm == original}
    after = [row for row in quantized if row.arm == (chosen or original)]
    return [
        QuantizedPair(before=before.get((row.profile, row.backend)) if chosen else None, after=row) for row in after
    ]


def headline_pair(report: RunReport) -> QuantizedPair | None:
    """The pair of the first comparison that tells most: measured, with an original beside it that lost most."""
    if not report.comparisons:
        return None
    comparison = report.comparisons[0]
    return max(
        quantized_pairs(comparison, chosen=compared_arm(report, comparison)),
        key=lambda pair: (
            pair.after.evidence == "measured",
            pair.before is not None,
            pair.before.drop if pair.before else pair.after.drop,
        ),
        default=None,
    )


def is_eight_bit(timing: CandidateTiming) -> bool:
    """Whether a candidate computes in 8 bits, by its stated precision."""
    return any(name in timing.precision.lower() for name in ("int8", "w8a8", "float8"))


def fastest_quantized(latency: BenchReport) -> CandidateTiming | None:
    """The fastest 8-bit candidate that is not the baseline."""
    eight_bit = [timing for timing in latency.timings if timing.speed_up and is_eight_bit(timing)]
    return max(eight_bit, key=lambda t: t.speed_up.ratio if t.speed_up else 0.0, default=None)
