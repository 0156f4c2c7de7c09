import json
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import pytest

from deploy.measuring.compare import Contender, compare, compare_row
from deploy.tasks.task import Infer, Runnable, TaskResult


class FixedModel:
    def __init__(self, score: float, *, is_simulated: bool = False) -> None:
        self.score = score
        self.is_simulated = is_simulated

    def infer(self, feeds: dict[str, np.ndarray], /) -> dict[str, np.ndarray]:
        return {"score": np.array(self.score)}


class ScoreTask:
    """Reads the score that the model outputs."""

    name, metric, num_examples = "fixed", "Spearman", 10

    def __init__(self, *, higher_is_better: bool = True) -> None:
        self.higher_is_better = higher_is_better

    def evaluate(self, infer: Infer) -> TaskResult:
        score = float(infer({})["score"])
        return TaskResult(score=score, details={"double": 2 * score})


def _contender(
    arm: str, *scores: float, events: list[str] | None = None, is_simulated: bool = False, **options: Any
) -> Contender:
    def opener(score: float) -> Callable[[], AbstractContextManager[Runnable]]:
        @contextmanager
        def opened() -> Iterator[Runnable]:
            if events is not None:
                events.append(f"open {score}")
            yield FixedModel(score, is_simulated=is_simulated)
            if events is not None:
                events.append(f"close {score}")

        return opened

    return Contender(arm=arm, backend="openvino", artifacts=tuple(opener(score) for score in scores), **options)


def test_scores_mean_std_and_drop_are_those_of_the_subsets() -> None:
    report = compare(
        _contender("float", 0.82, precision="float32"), [_contender("int8", 0.80, 0.81, 0.79)], ScoreTask()
    )
    row = report.rows[1]
    assert row.scores == (0.80, 0.81, 0.79)
    assert row.mean == pytest.approx(0.80)
    assert row.std == pytest.approx(0.01)
    assert row.drop == pytest.approx(0.02)
    assert row.details == {"double": pytest.approx(1.6)}
    assert row.verdict == "lost 0.0200 Spearman"
    assert row.passed is None
    assert report.baseline.scores == (0.82,)
    assert report.passed


def test_the_gate_judges_the_served_artifact_not_the_mean() -> None:
    # Mean drop 0.02, but what will be served loses only 0.001.
    lucky = _contender("int8", 0.819, 0.789, 0.792, served=0)
    unlucky = _contender("int8", 0.819, 0.789, 0.792, served=1)
    report = compare(_contender("float", 0.82), [lucky, unlucky], ScoreTask(), max_drop=0.004)
    assert [row.passed for row in report.rows] == [None, True, False]
    assert report.rows[1].verdict == "passed: lost 0.0010 Spearman, 0.0040 allowed"
    assert report.rows[2].verdict == "failed: lost 0.0310 Spearman, 0.0040 allowed"
    assert not report.passed


def test_what_is_only_shown_does_not_fail_the_gate() -> None:
    vanilla = _contender("original", 0.70, gated=False)
    report = compare(_contender("float", 0.82), [vanilla, _contender("retrofitted", 0.83)], ScoreTask(), max_drop=0.0)
    assert report.passed
    assert report.rows[2].verdict == "passed: gained 0.0100 Spearman, 0.0000 allowed"


def test_a_rise_of_perplexity_is_a_loss() -> None:
    report = compare(
        _contender("float", 4.5), [_contender("int8", 4.9)], ScoreTask(higher_is_better=False), max_drop=0.5
    )
    assert report.rows[1].drop == pytest.approx(0.4)
    assert report.rows[1].passed


def test_a_score_that_is_no_number_never_passes() -> None:
    arguments: dict[str, Any] = {"arm": "a", "backend": "b", "precision": "W8A8", "profile": None, "metric": "Spearman"}
    row = compare_row([float("nan")], baseline=0.8, higher_is_better=True, max_drop=0.1, **arguments)
    assert row.passed is False


def test_artifacts_are_open_one_at_a_time_and_once() -> None:
    events: list[str] = []
    lines: list[str] = []
    compare(
        _contender("float", 1.0, events=events),
        [_contender("int8", 0.9, 0.8, events=events, profile="paper")],
        ScoreTask(),
        progress=lines.append,
    )
    assert events == ["open 1.0", "close 1.0", "open 0.9", "close 0.9", "open 0.8", "close 0.8"]
    assert lines[1] == "fixed: int8 W8A8 paper on openvino, calibration subset 1 of 2"


def test_what_computes_integers_in_float_is_simulated() -> None:
    report = compare(_contender("float", 0.82), [_contender("int8", 0.81, 0.80, is_simulated=True)], ScoreTask())
    assert [row.evidence for row in report.rows] == ["measured", "simulated"]


def test_report_is_json_and_takes_simulated_rows() -> None:
    report = compare(_contender("float", 0.82), [_contender("int8", 0.81)], ScoreTask(), max_drop=0.1, data="made up")
    simulated = compare_row(
        [0.805],
        arm="int8",
        backend="pytorch",
        precision="W8A8",
        profile="paper",
        baseline=report.baseline.mean,
        metric=report.metric,
        higher_is_better=True,
        evidence="simulated",
    )
    values = json.loads(json.dumps(report.with_rows(simulated).to_dict(), allow_nan=False))
    assert [row["evidence"] for row in values["rows"]] == ["measured", "measured", "simulated"]
    assert values["passed"] is True
    assert values["rows"][2]["drop"] == pytest.approx(0.015)


def test_impossible_gates_and_contenders_are_refused() -> None:
    with pytest.raises(ValueError, match=r"max_drop is -0.1; expected a finite loss of at least 0"):
        compare(_contender("float", 0.8), [], ScoreTask(), max_drop=-0.1)
    with pytest.raises(ValueError, match="max_drop is inf; expected a finite loss"):
        compare(_contender("float", 0.8), [], ScoreTask(), max_drop=float("inf"))
    with pytest.raises(ValueError, match="served artifact 2 of 'int8' on openvino does not exist; it has 1"):
        compare(_contender("float", 0.8), [_contender("int8", 0.8, served=2)], ScoreTask())


def test_a_lowest_score_judges_where_the_baseline_is_exact() -> None:
    exact, candidates = _contender("float", math.inf), [_contender("good", 41.0), _contender("bad", 38.5)]
    report = compare(exact, candidates, ScoreTask(), min_score=40)
    assert [row.passed for row in report.rows] == [None, True, False]
    assert report.rows[2].verdict == "failed: 38.5000 Spearman, 40 required"
    written = report.to_dict()
    assert [row["mean"] for row in written["rows"]] == ["inf", 41.0, 38.5]
    assert [row["drop"] for row in written["rows"]] == [0.0, None, None]
    with pytest.raises(
        ValueError, match="max_drop has no meaning for Spearman: the float model equals itself; give min_score"
    ):
        compare(exact, candidates, ScoreTask(), max_drop=40)
    with pytest.raises(ValueError, match="not both"):
        compare(exact, candidates, ScoreTask(), max_drop=40, min_score=4)
    with pytest.raises(ValueError, match="less is better; give max_drop"):
        compare(exact, candidates, ScoreTask(higher_is_better=False), min_score=4)
    row = compare_row(
        [math.nan], arm="a", backend="b", precision="W8A8", profile=None, metric="dB", baseline=math.inf,
        higher_is_better=True, min_score=-1,
    )  # fmt: skip
    assert row.passed is False
