from dataclasses import replace

import pytest

from quietformer.report.content import RunReport
from quietformer.report.highlights import highlights
from quietformer.report.number_text import MINUS, TIMES, change, duration, figure, score, tick
from quietformer.report.story import story, verdict
from tests.quietformer.sample_report import sample_report


def _bare(report: RunReport) -> RunReport:
    """Only what a run without training, data, benchmark and engine knows."""
    return RunReport(model=report.model, created=report.created, machine=report.machine)


def test_verdict_names_the_loss_before_and_after() -> None:
    headline = verdict(sample_report())
    assert headline.sentence == "W8A8 costs 0.0028 Spearman instead of 0.0613 (paper profile on openvino)."
    assert headline.outcome == "passed"


def test_one_failed_gate_fails_the_run() -> None:
    report = sample_report()
    comparison = report.comparisons[0]
    failed = replace(comparison.rows[-1], passed=False, drop=0.02)
    report = replace(report, comparisons=(replace(comparison, rows=(*comparison.rows[:-1], failed)),))
    assert verdict(report).outcome == "failed"


def test_without_training_the_original_stands_alone() -> None:
    report = replace(sample_report(), arms=(), outliers_before=None)
    assert verdict(report).sentence == "W8A8 costs 0.0613 Spearman (paper profile on openvino)."
    rows = {row.what: row for row in story(report)}
    row = rows["Spearman, W8A8, paper profile on openvino"]
    assert (row.before, row.after, row.change) == ("0.8225", "0.7619 ± 0.0033", f"{MINUS}0.0606")
    assert row.is_better is False


def test_nothing_is_claimed_that_was_not_run() -> None:
    report = _bare(sample_report())
    assert story(report) == ()
    assert highlights(report) == []
    headline = verdict(report)
    assert (headline.sentence, headline.outcome) == ("No accuracy was measured in this run.", "not gated")


def test_story_compares_original_and_retrofitted_line_by_line() -> None:
    rows = {row.what: row for row in story(sample_report())}
    paper = rows["Spearman, W8A8, paper profile on openvino"]
    assert (paper.before, paper.after, paper.change) == ("0.7619 ± 0.0033", "0.8197 ± 0.0006", "+0.0578")
    assert paper.evidence == "measured"
    assert "Spearman, W8A8, paper profile on pytorch" not in rows
    assert rows["Graph on disk"].change == f"1.6{TIMES} smaller"
    assert rows["Engine, tensorrt-rtx"].evidence == "unverified"
    latency = next(row for what, row in rows.items() if what.startswith("Median latency, batch 1"))
    assert latency.change == f"3.8{TIMES} faster"
    assert "ONNX Runtime float32 against OpenVINO W8A8" in latency.what
    assert len(rows) <= 10


def test_a_profile_that_was_only_simulated_is_told_as_such() -> None:
    report = sample_report()
    comparison = report.comparisons[0]
    rows = tuple(row for row in comparison.rows if row.profile != "paper" or row.evidence == "simulated")
    lines = {row.what: row for row in story(replace(report, comparisons=(replace(comparison, rows=rows),)))}
    line = lines["Spearman, W8A8, paper profile on pytorch"]
    assert (line.before, line.after, line.change, line.evidence) == (
        "\N{EN DASH}",
        "0.8195",
        "\N{EN DASH}",
        "simulated",
    )


def test_the_trained_model_is_recognised_under_another_name() -> None:
    report = sample_report()
    comparison = report.comparisons[0]
    rows = tuple(replace(row, arm="retrofitted") if row.arm != "original" else row for row in comparison.rows)
    renamed = replace(report, comparisons=(replace(comparison, rows=rows),))
    assert story(renamed) == story(report)
    assert verdict(renamed) == verdict(report)


def test_highlights_are_at_most_four_and_carry_their_evidence() -> None:
    entries = highlights(sample_report())
    assert [entry.value for entry in entries] == ["0.8197", f"22.0{TIMES}", f"3.8{TIMES}", f"1.6{TIMES}"]
    assert {entry.evidence for entry in entries} == {"measured"}


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (196.4, "196"), (11_234.0, "11,234"), (9.456, "9.46"), (0.0712, "0.0712"), (-3.2, f"{MINUS}3.20")],
)
def test_figures_have_three_significant_digits(value: float, text: str) -> None:
    assert figure(value) == text


def test_numbers_read_like_numbers() -> None:
    assert figure(4.01e-6) == f"4.01e{MINUS}06"
    assert tick(10.0) == "10"
    assert tick(100.0) == "100"
    assert tick(0.5) == "0.5"
    assert score(4.456, metric="perplexity") == "4.46"
    assert change(-0.00001, metric="Spearman") == "0.0000"
    assert [duration(seconds) for seconds in (42.0, 268.0, 7200.0)] == ["42 s", "4.5 min", "2.0 h"]
