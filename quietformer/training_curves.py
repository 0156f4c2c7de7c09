"""The curves of a training run, from the log it leaves or is still writing: what ``quietformer inspect RUN`` tells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from deploy.files import write_atomically
from deploy.machine import machine_facts
from quietformer.model_facts import now
from quietformer.report.content import Arm
from quietformer.report.figures.plot import Plot
from quietformer.report.number_text import figure
from quietformer.report.tables import Table, machine_table
from quietformer.report.training_history import read_history
from quietformer.stages.layout import RETROFIT_LOG, TRAIN_LOG, TRAINING
from quietformer.terminal_table import terminal_table

SCHEMA_VERSION = 1
_UNFINISHED_LOG = "log.jsonl"


def find_log(folder: Path) -> Path | None:
    """The log of a run directory, of a run that is still training, or of a folder of ``train.loop``; ``None`` without one.

    Of several seeds in training, the first.
    """
    if not folder.is_dir():
        return None
    named = [folder / name for name in (TRAIN_LOG, RETROFIT_LOG, _UNFINISHED_LOG, f"{TRAINING}/{_UNFINISHED_LOG}")]
    seeds = sorted((folder / TRAINING).glob(f"*/{_UNFINISHED_LOG}"))
    return next((path for path in [*named, *seeds] if path.is_file()), None)


def curve_table(history: tuple[dict[str, float], ...]) -> Table:
    """First, smallest, largest and last value of everything that was logged."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for point in history:
        for name, value in point.items():
            if name != "step":
                curves.setdefault(name, []).append((point["step"], value))
    rows = []
    for name, points in curves.items():
        low, high = min(points, key=lambda p: p[1]), max(points, key=lambda p: p[1])
        rows.append(
            (
                name,
                str(len(points)),
                figure(points[0][1]),
                f"{figure(low[1])} (step {low[0]:,.0f})",
                f"{figure(high[1])} (step {high[0]:,.0f})",
                figure(points[-1][1]),
            )
        )
    return Table(header=("Figure", "Points", "First", "Smallest", "Largest", "Last"), rows=tuple(rows))


def tell_run(log: Path, *, json_file: Path | None, html_file: Path | None, plots: Path | None) -> None:
    """Print the table of a run's curves, and write figures, page and drawings where asked.

    Raises:
        ValueError: the log is damaged or empty.
    """
    # A retrofit is judged by its simulated integer model, a model from scratch by its own loss, which is logged by name too.
    from_scratch = log.name == TRAIN_LOG or log.parent.parent.name == TRAINING
    history = read_history(log, score="score" if from_scratch else "simulated")
    if not history:
        raise ValueError(f"{log} is empty: the run has not reported a step yet")
    table = curve_table(history)
    typer.echo(terminal_table(table))
    steps = int(history[-1]["step"])
    typer.echo(f"{steps:,} steps in {log}")
    if json_file is not None:
        content: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "log": str(log), "history": list(history)}
        write_atomically(json_file, json.dumps(content, indent=1, allow_nan=False) + "\n")
    arm = Arm(name=log.parent.name, chosen=True, attention={}, steps=steps, seconds=0.0, history=history)
    if html_file is not None:
        write_atomically(html_file, _page(arm, log, table))
    if plots is not None:
        from quietformer.report.plot_files import write_plots  # noqa: PLC0415

        write_plots(plots, {"training": _drawn(arm)}, force=True)


def _page(arm: Arm, log: Path, table: Table) -> str:
    from quietformer.report.page_template import Page, Section, render  # noqa: PLC0415

    return render(
        Page(
            kind="training",
            name=arm.name,
            facts=[str(log)],
            created=now(),
            headline=f"{arm.steps:,} steps.",
            sections=[Section(anchor="training", title="Training", plots=_drawn(arm), table=table)],
            machine=machine_table(machine_facts()),
        )
    )


def _drawn(arm: Arm) -> list[Plot]:
    from quietformer.report.figures.evaluations import evaluation_plots  # noqa: PLC0415
    from quietformer.report.figures.training import training_plots  # noqa: PLC0415

    return [*training_plots([arm]), *evaluation_plots(arm)]
