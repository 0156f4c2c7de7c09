"""Switches of sites that timing decided, as a table: every combination that was tried, by graph."""

from __future__ import annotations

from collections.abc import Mapping

from deploy.quantization.switch_decision import SwitchDecision, switches_text
from quietformer.report.number_text import TIMES, figure
from quietformer.report.story import NOTHING
from quietformer.report.tables import Table


def decision_table(decisions: Mapping[str, SwitchDecision]) -> Table | None:
    """One row per graph and combination; None where no switch was left to timing."""
    rows = []
    for graph, decision in decisions.items():
        where = f"{decision.backend}, {decision.measured}" if decision.measured else NOTHING
        for timing in decision.timings:
            speed_up = timing.speed_up
            rows.append(
                (
                    graph,
                    switches_text(timing.switches),
                    where,
                    timing.precision or NOTHING,
                    "chosen" if timing.switches == decision.switches else NOTHING,
                    figure(timing.median_ms) if timing.median_ms is not None else NOTHING,
                    f"{speed_up[0]:.2f}{TIMES} ({speed_up[1]:.2f} to {speed_up[2]:.2f})" if speed_up else NOTHING,
                )
            )
    if not rows:
        return None
    simulated = [graph for graph, decision in decisions.items() if decision.is_simulated]
    return Table(
        header=("Graph", "Sites", "Timed on", "Precision", "", "Median, ms", "Speed-up"),
        rows=tuple(rows),
        text_columns=5,
        caption="All off stays unless the whole 95 % interval of another combination lies above 1; accuracy is judged apart."
        + (f" Integers were computed in float for {', '.join(simulated)}." if simulated else ""),
    )
