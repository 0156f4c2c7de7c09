import json
from dataclasses import replace
from pathlib import Path

import pytest

from quietformer.report.content import load_report, save_report
from quietformer.report.training_history import MAX_POINTS, read_history
from tests.quietformer.sample_report import sample_report


def test_report_json_round_trips_exactly(tmp_path: Path) -> None:
    save_report(sample_report(), tmp_path / "report.json")
    assert load_report(tmp_path / "report.json") == sample_report()


def test_foreign_documents_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    with pytest.raises(FileNotFoundError, match="no report at"):
        load_report(path)
    save_report(sample_report(), path)
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | {"schema_version": 99}))
    with pytest.raises(ValueError, match="schema version 99; this version reads 1"):
        load_report(path)
    values["latency"][0]["timings"][1]["num_queries"] = "many"
    path.write_text(json.dumps(values))
    with pytest.raises(ValueError, match=r"latency\.0\.timings\.1\.num_queries"):
        load_report(path)


def test_a_report_with_a_value_that_is_no_number_is_not_written(tmp_path: Path) -> None:
    report = replace(sample_report(), calibration={"momentum": float("nan")})
    with pytest.raises(ValueError, match="not JSON compliant"):
        save_report(report, tmp_path / "report.json")
    assert list(tmp_path.iterdir()) == []


def test_history_reads_the_loops_log(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    lines = [
        {
            "kind": "step",
            "step": 1,
            "loss": 2.0,
            "parts": {"distillation": 1.5, "penalty": 50.0},
            "largest_activation": 9.0,
        },
        {"kind": "evaluation", "step": 1, "score": 0.8, "float": 0.82},
        {"kind": "step", "step": 2, "loss": None, "parts": {"penalty": 40.0}, "largest_activation": None},
    ]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_history(log) == (
        {"step": 1.0, "loss": 2.0, "distillation": 1.5, "penalty": 50.0, "largest_activation": 9.0},
        {"step": 1.0, "simulated": 0.8, "float": 0.82},
        {"step": 2.0, "penalty": 40.0},
    )


def test_a_long_history_is_thinned_but_ends_where_the_run_did(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps({"kind": "step", "step": step, "loss": 1.0}) + "\n" for step in range(1, 5001)))
    history = read_history(log)
    assert len(history) <= MAX_POINTS + 1
    assert (history[0]["step"], history[-1]["step"]) == (1.0, 5000.0)


def test_a_line_that_is_no_entry_is_named(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"kind": "step", "step": 1}\nnonsense\n')
    with pytest.raises(ValueError, match="line 2 of"):
        read_history(log)
    with pytest.raises(FileNotFoundError, match="no training log"):
        read_history(tmp_path / "absent.jsonl")
