"""Findings on a terminal: one cause once."""

from __future__ import annotations

from deploy.quantization.lint_rules.finding import Finding
from quietformer.report.lint_text import lint_lines


def finding(rule: str, node: str, advice: str) -> Finding:
    return Finding(rule=rule, node=node, tensor=f"{node}_t", message=f"{node} is wrong", advice=advice)


def test_one_cause_is_told_once_with_its_number_and_first_places() -> None:
    findings = [finding("QF001", f"n{number}", "mend it") for number in range(5)]
    findings += [finding("QF003", "a", "this"), finding("QF003", "b", "that"), finding("QF003", "c", "this")]
    assert list(lint_lines(findings)) == [
        "QF001 \N{MULTIPLICATION SIGN} 5: mend it",
        "  n0 (n0_t): n0 is wrong",
        "  n1 (n1_t): n1 is wrong",
        "  n2 (n2_t): n2 is wrong",
        "  and 2 more; --all, --json and --html list them",
        "QF003 b (b_t): b is wrong; that",
        "QF003 \N{MULTIPLICATION SIGN} 2: this",
        "  a (a_t): a is wrong",
        "  c (c_t): c is wrong",
    ]
    every = list(lint_lines(findings, every_place=True))
    assert [line for line in every if "n4" in line] == ["  n4 (n4_t): n4 is wrong"]
    assert not any("more;" in line for line in every)
    assert not list(lint_lines([]))
