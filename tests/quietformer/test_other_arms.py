"""Arms of other runs in a report: shown beside its own when the same float original judged them on the same task."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from quietformer.report.content import Arm, RunReport
from quietformer.report.page import to_html
from quietformer.report.tables import arm_table
from quietformer.stages.other_arms import ArmRecord, with_other_arms, write_other_arms
from tests.quietformer.sample_report import sample_history, sample_report


def _report() -> RunReport:
    report = sample_report()
    return replace(report, arms=tuple(arm for arm in report.arms if arm.chosen), latency=(), ranges_before=())


def _record(name: str, *, baseline: float = 0.8225) -> ArmRecord:
    comparison = _report().comparisons[0]
    rows = tuple(replace(row, arm="retrofitted") for row in comparison.rows if row.arm == "gates + penalty")
    arm = Arm(
        name=name, chosen=False, attention={}, steps=300, seconds=60.0, history=sample_history(300), compared=rows
    )
    return ArmRecord(arm=arm, task="sts", baseline=baseline)


def test_records_beside_a_run_become_arms_of_its_report_with_their_scores(tmp_path: Path) -> None:
    write_other_arms(tmp_path, [_record("penalty"), _record("distillation only")])
    report = with_other_arms(_report(), tmp_path)
    assert [arm.name for arm in report.arms] == ["gates + penalty", "distillation only", "penalty"]
    assert report.chosen_arm == report.arms[0]
    table = arm_table(report)
    assert table is not None
    own, *others = table.rows
    assert own[0] == "gates + penalty (chosen)"
    assert own[-2] == "0.8231"
    assert all(row[-2:] == own[-2:] for row in others)
    page = to_html(report)
    assert "distillation only" in page
    assert "penalty.json" not in page


def test_writing_records_again_replaces_those_that_lie_there(tmp_path: Path) -> None:
    write_other_arms(tmp_path, [_record("penalty")])
    write_other_arms(tmp_path, [_record("gates")])
    assert [arm.name for arm in with_other_arms(_report(), tmp_path).arms] == ["gates + penalty", "gates"]


def test_an_arm_that_was_judged_on_other_data_is_left_out_with_a_note(tmp_path: Path) -> None:
    write_other_arms(tmp_path, [_record("penalty", baseline=0.7)])
    report = with_other_arms(_report(), tmp_path)
    assert len(report.arms) == 1
    assert report.notes[-1] == "the arm 'penalty' is not shown: it was judged on other data than this run"


def test_a_run_without_records_keeps_its_report(tmp_path: Path) -> None:
    assert with_other_arms(_report(), tmp_path) == _report()


def test_a_damaged_record_is_refused_by_name(tmp_path: Path) -> None:
    write_other_arms(tmp_path, [_record("penalty")])
    path = tmp_path / "other-arms" / "penalty.json"
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(ValueError, match=f"{path} is no record of an arm"):
        with_other_arms(_report(), tmp_path)
