"""Float against quantized on one task, over several calibration subsets, with a verdict.

The gate looks at the artifact that will be served; the other subsets show how much calibration data matters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np

from deploy.data.example_draw import ExamplesUsed
from deploy.tasks.score_gate import Gate, loss_against, loss_in_words
from deploy.tasks.task import Runnable, Task, TaskResult

Evidence = Literal["measured", "simulated", "unverified"]
"""``measured``: by running the artifact. ``simulated``: by rounding in float. ``unverified``: claimed, never run here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Contender:
    """One configuration: the same model, profile and backend, quantized from one or several calibration subsets."""

    arm: str
    """Which model: ``original``, ``gates + penalty`` and so on."""
    backend: str
    precision: str = "W8A8"
    """Of the arithmetic, in words: ``float32``, ``bfloat16``, ``W8A8``."""
    profile: str | None = None
    """Quantization profile, None for float."""
    artifacts: tuple[Callable[[], AbstractContextManager[Runnable]], ...]
    """Openers, one per calibration subset, each opened only while it is evaluated."""
    served: int = 0
    """Index of the artifact that will be served, the one that the gate judges."""
    gated: bool = True
    """False for what is only shown, such as the model before retrofit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CompareRow:
    """Outcome of one contender."""

    arm: str
    backend: str
    precision: str
    profile: str | None
    scores: tuple[float, ...]
    """One per calibration subset."""
    served: int
    """Index in ``scores`` of the artifact that will be served."""
    mean: float
    std: float
    """Sample standard deviation over the subsets, 0 for a single one and where a score is not finite."""
    drop: float
    """Loss of the served artifact against the baseline, in the metric's unit; positive is worse, infinite where the baseline is exact."""
    passed: bool | None
    """None when no gate applied."""
    verdict: str
    """In words."""
    details: dict[str, float] = field(default_factory=dict)
    """More figures of the served artifact."""
    evidence: Evidence = "measured"
    max_drop: float | None = None
    """Largest loss that would have passed, None when that was not asked for."""
    min_score: float | None = None
    """Lowest score that would have passed, None when that was not asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CompareReport:
    """Scores of all contenders on one task; the first row is the baseline."""

    task: str
    metric: str
    higher_is_better: bool
    num_examples: int
    max_drop: float | None
    rows: tuple[CompareRow, ...]
    data: str = ""
    """What was evaluated on, in words."""
    examples: ExamplesUsed | None = None
    """Which examples of it."""
    min_score: float | None = None

    @property
    def baseline(self) -> CompareRow:
        """What the drops are measured against."""
        return self.rows[0]

    @property
    def passed(self) -> bool:
        """Whether no gated contender failed."""
        return all(row.passed is not False for row in self.rows)

    def with_rows(self, *rows: CompareRow) -> CompareReport:
        """The same report with further rows, for example simulated figures from training."""
        return replace(self, rows=self.rows + rows)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; an infinite score becomes a text, and a loss against one null."""
        rows = [
            asdict(row) | {"scores": list(map(_plain, row.scores)), "mean": _plain(row.mean), "drop": _finite(row.drop)}
            for row in self.rows
        ]
        return asdict(self) | {"rows": rows, "passed": self.passed}


def compare(
    baseline: Contender,
    candidates: Sequence[Contender],
    task: Task,
    *,
    max_drop: float | None = None,
    min_score: float | None = None,
    data: str = "",
    examples: ExamplesUsed | None = None,
    progress: Callable[[str], None] | None = None,
) -> CompareReport:
    """Evaluate ``baseline`` and every candidate on the same batches of ``task``.

    Args:
        baseline: Usually the original float model; the first row of the report.
        candidates: What is compared with it.
        task: Evaluates anything that maps feeds to outputs.
        max_drop: Largest loss of a gated candidate that still passes, in the metric's unit (for perplexity: the rise).
        min_score: Instead of it the lowest score that passes.
        data: What the task evaluates on, in words.
        examples: Which examples of it.
        progress: Called with one line before each evaluation.

    Raises:
        ValueError: a bound means nothing (:meth:`deploy.tasks.score_gate.Gate.check`), or a contender has no artifact, or its served index is not one of them.
    """
    gate = Gate(max_drop=max_drop, min_score=min_score)
    gate.check(task)
    contenders = (replace(baseline, gated=False), *candidates)
    for contender in contenders:
        if not 0 <= contender.served < len(contender.artifacts):
            raise ValueError(
                f"served artifact {contender.served} of '{contender.arm}' on {contender.backend} does not exist;"
                f" it has {len(contender.artifacts)}"
            )
    outcomes = [_evaluate(contender, task, progress=progress) for contender in contenders]
    float_score = outcomes[0][0][baseline.served].score
    gate.check_baseline(float_score, task)
    rows = tuple(
        compare_row(
            [result.score for result in results],
            arm=contender.arm,
            backend=contender.backend,
            precision=contender.precision,
            profile=contender.profile,
            served=contender.served,
            baseline=float_score,
            metric=task.metric,
            higher_is_better=task.higher_is_better,
            max_drop=max_drop if contender.gated else None,
            min_score=min_score if contender.gated else None,
            details=results[contender.served].details,
            evidence=evidence,
        )
        for contender, (results, evidence) in zip(contenders, outcomes, strict=True)
    )
    return CompareReport(
        task=task.name,
        metric=task.metric,
        higher_is_better=task.higher_is_better,
        num_examples=task.num_examples,
        max_drop=max_drop,
        rows=rows,
        data=data,
        examples=examples,
        min_score=min_score,
    )


def compare_row(
    scores: Sequence[float],
    *,
    arm: str,
    backend: str,
    precision: str,
    profile: str | None,
    baseline: float,
    metric: str,
    higher_is_better: bool,
    max_drop: float | None = None,
    min_score: float | None = None,
    served: int = 0,
    details: dict[str, float] | None = None,
    evidence: Evidence = "measured",
) -> CompareRow:
    """One row from scores that exist already, such as simulated ones; arguments as the fields of :class:`CompareRow`."""
    gate = Gate(max_drop=max_drop, min_score=min_score)
    drop = loss_against(baseline, scores[served], higher_is_better=higher_is_better)
    passed = None if gate.is_open else gate.passes(scores[served], drop)
    return CompareRow(
        arm=arm,
        backend=backend,
        precision=precision,
        profile=profile,
        scores=tuple(float(score) for score in scores),
        served=served,
        mean=float(np.mean(scores)),
        std=float(np.std(scores, ddof=1)) if len(scores) > 1 and all(map(math.isfinite, scores)) else 0.0,
        drop=float(drop),
        passed=passed,
        verdict=_verdict(scores[served], drop, passed=passed, gate=gate, metric=metric),
        details=dict(details or {}),
        evidence=evidence,
        max_drop=max_drop,
        min_score=min_score,
    )


def _verdict(score: float, drop: float, *, passed: bool | None, gate: Gate, metric: str) -> str:
    change = f"{loss_in_words(drop)} {metric}" if math.isfinite(drop) else f"{score:.2f} {metric}"
    if passed is None:
        return change
    allowed = f"{gate.max_drop:.4f} allowed" if gate.max_drop is not None else f"{gate.min_score:g} required"
    if gate.max_drop is None:
        change = f"{score:.4f} {metric}"
    return f"{'passed' if passed else 'failed'}: {change}, {allowed}"


def _plain(score: float) -> float | str:
    return score if math.isfinite(score) else str(score)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _evaluate(
    contender: Contender, task: Task, *, progress: Callable[[str], None] | None
) -> tuple[list[TaskResult], Evidence]:
    """Results of all subsets, and what they prove."""
    results = []
    evidence: Evidence = "measured"
    for index, open_artifact in enumerate(contender.artifacts):
        if progress is not None:
            subset = f", calibration subset {index + 1} of {len(contender.artifacts)}"
            label = " ".join(filter(None, [contender.arm, contender.precision, contender.profile]))
            progress(f"{task.name}: {label} on {contender.backend}{subset if len(contender.artifacts) > 1 else ''}")
        with open_artifact() as artifact:
            results.append(task.evaluate(artifact.infer))
            if artifact.is_simulated:
                evidence = "simulated"
    return results, evidence
