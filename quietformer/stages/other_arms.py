"""Figures of the other ways of training in a run's report, where they were run: one file per arm in the run directory.

An arm is a run of its own, up to the comparison in integers (``benchmarks/retrofit_arms.py``). :func:`write_other_arms` copies what its
report would say of it beside the run whose report is to show it; the report stage then reads whatever lies there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from deploy.files import write_atomically
from quietformer.recipe.recipe import load_recipe
from quietformer.report.content import Arm, RunReport
from quietformer.stages.layout import OTHER_ARMS, RECIPE_FILE, made
from quietformer.stages.report_gathering import gather_arm, gather_comparisons
from quietformer.stages.stage import Run

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmRecord:
    """What another run says of its arm."""

    arm: Arm
    task: str
    """Task of ``arm.compared``."""
    baseline: float
    """Score of the float original on it: equal in runs that can be compared."""
    schema_version: int = SCHEMA_VERSION


def record_arm(folder: Path) -> ArmRecord:
    """What a run directory says of the arm it trained, judged on its first task.

    Raises:
        FileNotFoundError: the run has not been compared yet.
        ValueError: it compares nothing, or one of its files is damaged.
    """
    run = Run(recipe=load_recipe(folder / RECIPE_FILE), folder=folder)
    comparisons = gather_comparisons(run)
    if not comparisons:
        raise ValueError(f"{folder} compares nothing; there is no score to show beside another run's")
    first, name = comparisons[0], made(run.recipe)
    rows = tuple(row for row in first.rows if row.arm == name)
    arm = replace(gather_arm(run), chosen=False, compared=rows)
    return ArmRecord(arm=arm, task=first.task, baseline=first.baseline.mean)


def write_other_arms(folder: Path, records: Sequence[ArmRecord]) -> None:
    """Put records beside a run, in place of those that lie there."""
    place = folder / OTHER_ARMS
    place.mkdir(parents=True, exist_ok=True)
    for stale in place.glob("*.json"):
        stale.unlink()
    for record in records:
        name = "-".join(record.arm.name.replace("+", "and").split())
        write_atomically(place / f"{name}.json", json.dumps(asdict(record), indent=1, allow_nan=False) + "\n")


def with_other_arms(report: RunReport, folder: Path) -> RunReport:
    """The report of a run with the arms that lie in its directory, and a note for each that cannot be compared with it.

    An arm is shown when it was judged on the report's first task, with the same score of the float original.

    Raises:
        ValueError: a file is not a record; it is named.
    """
    arms, notes = list(report.arms), list(report.notes)
    own = report.comparisons[0] if report.comparisons else None
    for path in sorted((folder / OTHER_ARMS).glob("*.json")):
        try:
            record = TypeAdapter(ArmRecord).validate_json(path.read_bytes())
        except ValidationError as error:
            raise ValueError(f"{path} is no record of an arm: {error.errors()[0]['msg']}") from error
        if record.schema_version != SCHEMA_VERSION:
            raise ValueError(f"{path} has schema version {record.schema_version}; this version reads {SCHEMA_VERSION}")
        if own is not None and (own.task, own.baseline.mean) == (record.task, record.baseline):
            arms.append(record.arm)
        else:
            notes.append(f"the arm '{record.arm.name}' is not shown: it was judged on other data than this run")
    return replace(report, arms=tuple(arms), notes=tuple(notes))
