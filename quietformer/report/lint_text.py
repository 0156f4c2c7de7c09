"""Findings of ``lint`` as lines for a terminal: one cause once, with a few of its places."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from deploy.quantization.lint_rules.finding import Finding

PLACES_SHOWN = 3


def lint_lines(findings: Sequence[Finding], *, every_place: bool = False) -> Iterator[str]:
    """Findings of one rule with one advice together: how many, the advice, the first places.

    Args:
        findings: sorted by rule.
        every_place: show all places.
    """
    ordered = sorted(findings, key=lambda finding: (finding.rule, finding.advice))  # stable: the graph's order stays
    for (rule, advice), group in groupby(ordered, key=lambda finding: (finding.rule, finding.advice)):
        places = list(group)
        if len(places) == 1:
            yield str(places[0])
            continue
        yield f"{rule} \N{MULTIPLICATION SIGN} {len(places)}: {advice}"
        shown = places if every_place else places[:PLACES_SHOWN]
        for finding in shown:
            yield f"  {finding.node} ({finding.tensor}): {finding.message}"
        if rest := len(places) - len(shown):
            yield f"  and {rest} more; --all, --json and --html list them"
