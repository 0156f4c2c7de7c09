"""Findings of ``lint`` as one HTML page and as plain values."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from deploy.machine import machine_facts
from deploy.quantization.lint_rules.finding import Finding
from quietformer.report.page_template import Page, Section, render
from quietformer.report.story import Verdict
from quietformer.report.tables import Table, machine_table

SCHEMA_VERSION = 1


def lint_headline(findings: Sequence[Finding], *, profile: str) -> str:
    """What it comes to, in one sentence."""
    if not findings:
        return f"No findings for profile {profile}."
    rules = Counter(finding.rule for finding in findings)
    found = ", ".join(f"{rule} \N{MULTIPLICATION SIGN} {number}" for rule, number in sorted(rules.items()))
    return f"{len(findings)} finding{'s' * (len(findings) > 1)} for profile {profile}: {found}."


def lint_to_dict(findings: Sequence[Finding], *, profile: str, graph_sha256: str) -> dict[str, Any]:
    """Plain values for JSON."""
    return {
        "schema_version": SCHEMA_VERSION,
        "profile": profile,
        "graph_sha256": graph_sha256,
        "findings": [asdict(finding) for finding in findings],
    }


def lint_to_html(findings: Sequence[Finding], *, name: str, profile: str, graph_sha256: str) -> str:
    """The page.

    Raises:
        ImportError: jinja2 is not installed.
    """
    headline = lint_headline(findings, profile=profile)
    section = Section(
        anchor="findings",
        title="Where the graph breaks a rule",
        lead="In the order of the rules, then of the graph." if findings else "Nowhere.",
        table=_table(findings) if findings else None,
    )
    return render(
        Page(
            kind="lint",
            name=name,
            facts=[f"profile {profile}"],
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            headline=headline,
            verdict=Verdict(sentence=headline, outcome="failed" if findings else "passed"),
            sections=[section],
            machine=machine_table(machine_facts()),
            settings=json.dumps({"graph_sha256": graph_sha256, "profile": profile}, indent=1),
        )
    )


def _table(findings: Sequence[Finding]) -> Table:
    return Table(
        header=("Rule", "Node", "Tensor", "What is wrong", "What to do"),
        rows=tuple(
            (finding.rule, finding.node, finding.tensor, finding.message, finding.advice) for finding in findings
        ),
        text_columns=5,
    )
