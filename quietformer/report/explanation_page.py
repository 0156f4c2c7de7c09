"""An explanation of a graph's sites as a table and as one HTML page."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from datetime import UTC, datetime

from deploy.explanation.explanation import ExplainedSite, Explanation
from deploy.machine import machine_facts
from quietformer.report.figures.label_bars import label_bars
from quietformer.report.figures.plot import Plot
from quietformer.report.number_text import change, figure, score
from quietformer.report.page_template import Page, Section, render
from quietformer.report.story import NOTHING
from quietformer.report.tables import Table, machine_table

_SHOWN = 16
_BARS = 12


def headline(found: Explanation) -> str:
    """What it comes to, in one or two sentences."""
    metric = found.metric
    start = (
        f"{metric} {score(found.float_score, metric=metric)} in float, {score(found.quantized_score, metric=metric)} with all "
        f"{len(found.sites)} sites of profile {found.profile} in integers ({found.evidence})."
    )
    if found.gate.is_open:
        return start
    bound = found.gate.in_words()
    if found.float_sites is None:
        return f"{start} No set of float sites that was tried passes ({bound})."
    if not found.float_sites:
        return f"{start} That passes ({bound}): nothing has to stay float."
    assert found.float_sites_score is not None
    return (
        f"{start} {len(found.float_sites)} of {len(found.sites)} sites in float give "
        f"{score(found.float_sites_score, metric=metric)} ({bound} passes): {', '.join(found.float_sites)}."
        + (f" With them these lose their integers: {', '.join(found.taken_along)}." if found.taken_along else "")
    )


def site_table(found: Explanation, *, limit: int | None = _SHOWN) -> Table:
    """The sites, most harmful first."""
    rows = found.sites[:limit]
    left = f" {len(found.sites) - len(rows)} more sites do less." if len(rows) < len(found.sites) else ""
    return Table(
        header=(
            "Site", "Kind", "Integers span", "Saturated", "To zero", "SQNR", "Outputs, alone", "Outputs, without", f"{found.metric} without",
        ),
        rows=tuple(_row(found, site) for site in rows),
        text_columns=2,
        caption=(
            "SQNR in dB: of the tensor; of the outputs with only this site in integers; and with only this site in float "
            f"(all in integers: {_decibels(found.output_sqnr)} dB). Integers span: the least and the largest value they can stand for, to "
            "a step the calibrated range, symmetric where the profile is. Saturated: share of values beyond it. To zero: share of values other than 0 that become "
            f"0.{left}"
        ),
    )  # fmt: skip


def explanation_to_html(found: Explanation, *, name: str) -> str:
    """The page.

    Raises:
        ImportError: jinja2 is not installed.
    """
    machine = machine_facts()
    sections = [
        Section(
            anchor="sites",
            title="What integers do to each site",
            lead="Most harmful first: by how close the outputs come to the float model's with only that site in float.",
            plots=_plots(found),
            table=site_table(found),
            folded=site_table(found, limit=None),
            folded_title="All sites",
        )
    ]
    if found.steps:
        sections.append(
            Section(
                anchor="search",
                title="The search",
                lead="Sites are added where the outputs gain most, then given back where the task still passes.",
                table=_steps_table(found),
            )
        )
    return render(
        Page(
            kind="explanation",
            name=name,
            facts=[
                f"profile {found.profile}, {found.bits}",
                f"weights {found.weights}, activations {found.method}",
                f"{found.num_examples:,} examples of {found.data}"
                + (f" ({found.examples.in_words()})" if found.examples is not None else ""),
            ],
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            headline=headline(found),
            sections=sections,
            machine=machine_table(machine),
            settings=json.dumps(
                {
                    "graph_sha256": found.graph_sha256,
                    "task": found.task,
                    "max_drop": found.max_drop,
                    "min_score": found.min_score,
                    "examples": None if found.examples is None else asdict(found.examples),
                    "probe": asdict(found.probe),
                },
                indent=1,
            ),
        )
    )


def _row(found: Explanation, site: ExplainedSite) -> tuple[str, ...]:
    without = NOTHING
    if site.score_without is not None:
        sign = 1 if found.higher_is_better else -1
        gain = sign * (site.score_without - found.quantized_score)
        without = f"{score(site.score_without, metric=found.metric)} ({change(gain, metric=found.metric)})"
    return (
        site.name,
        f"{site.kind}{', weight' if site.is_weight else ''}",
        f"[{figure(site.low)}, {figure(site.high)}]",
        _share(site.saturated),
        _share(site.zeroed),
        _decibels(site.sqnr),
        _decibels(site.output_sqnr_alone),
        _decibels(site.output_sqnr_without),
        without,
    )


def _steps_table(found: Explanation) -> Table:
    return Table(
        header=("Sites in float", "Number", found.metric, "Loss"),
        rows=tuple(
            (
                ", ".join(step.float_sites),
                str(len(step.float_sites)),
                score(step.score, metric=found.metric),
                f"{step.drop:.4f}" if math.isfinite(step.drop) else NOTHING,
            )
            for step in found.steps
        ),
        text_columns=1,
    )


def _plots(found: Explanation) -> list[Plot]:
    base = found.output_sqnr
    if base is None or not math.isfinite(base):
        return []
    shown = [site for site in found.sites[:_BARS] if site.output_sqnr_without is not None]
    gains = [max(0.0, site.output_sqnr_without - base) for site in shown if site.output_sqnr_without is not None]
    chosen = set(found.float_sites or ())
    svg = label_bars(
        [_short(site.name) for site in shown],
        gains,
        heading="dB gained at the outputs",
        marked=[site.name in chosen for site in shown],
    )
    return [
        Plot(
            svg=svg,
            alt=f"Bars: {shown[0].name} gains most, {figure(gains[0])} dB." if shown else "No site changes anything.",
            caption="With only this site in float. Red: sites of the set that was found.",
            evidence="simulated",
        )
    ]


def _short(name: str) -> str:
    return name[-14:]


def _share(value: float) -> str:
    if value == 0:
        return "0"
    return f"{value:.1%}" if value >= 1e-3 else f"{value:.0e}"


def _decibels(value: float | None) -> str:
    if value is None:
        return "exact"
    return f"{value:.1f}".replace("-", "\N{MINUS SIGN}") if math.isfinite(value) else str(value)
