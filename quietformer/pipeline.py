"""Runs a recipe stage by stage in one run directory, and never does a thing twice.

A stage is skipped when its settings, its inputs and its outputs are what ``manifest.json`` says. Finished work is not
thrown away silently: when other settings, other data or a hand-made change would replace it, the run is refused with the
first difference named, and ``--force`` replaces that stage's outputs and whatever follows from them. A missing output is
made again. Other versions of the tools do not undo finished work; the manifest says which were used.
"""

from __future__ import annotations

import fcntl
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deploy.files import write_atomically
from quietformer.extras import require
from quietformer.manifest import (
    MANIFEST_FILE,
    Manifest,
    StageRecord,
    describe_change,
    hash_paths,
    tool_versions,
)
from quietformer.progress import progress, say
from quietformer.recipe.recipe import Recipe
from quietformer.stages.layout import RECIPE_FILE
from quietformer.stages.stage import Run, Stage

_LOCK_FILE = ".lock"
_TEMPORARY_NAME = re.compile(r"\..+\.[a-z0-9_]{8}(\.[^.]+)?")


def run_stages(recipe: Recipe, folder: Path, stages: Sequence[Stage], *, force: bool = False) -> None:
    """Bring a run directory up to date with a recipe.

    Args:
        recipe: what to do.
        folder: the run directory, made when absent.
        stages: in order; each reads what earlier ones wrote.
        force: replace artifacts whose settings, sources or bytes have changed.

    Raises:
        FileExistsError: the directory is not a run's, or holds a run with other settings, and ``force`` is not set.
        NotADirectoryError: ``folder`` is a file.
        ValueError: a stage refuses its input.
        ImportError: a stage needs a package that is not installed.
        BlockingIOError: another run works in the directory.
    """
    with _lock(folder, force=force):
        manifest = Manifest.load(folder)
        _look_at_sources(recipe, stages)
        if not force:
            _refuse_changes(recipe, manifest, stages)
        _remove_temporary_files(folder)
        write_atomically(folder / RECIPE_FILE, recipe.to_toml())
        for number, stage in enumerate(stages, start=1):
            _bring_up_to_date(
                stage, Run(recipe=recipe, folder=folder, force=force), manifest, label=f"[{number}/{len(stages)}]"
            )


@contextmanager
def _lock(folder: Path, *, force: bool) -> Iterator[None]:
    """Hold a run directory for one process; the system lets go of it however the process ends."""
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file; expected a folder for the run")
    if folder.is_dir() and not (folder / MANIFEST_FILE).is_file() and not (folder / RECIPE_FILE).is_file():
        strangers = [entry.name for entry in folder.iterdir() if entry.name != _LOCK_FILE]
        if strangers and not force:
            raise FileExistsError(
                f"{folder} is not a run directory (it holds '{min(strangers)}'); pass --force to use it"
            )
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK_FILE).open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BlockingIOError(f"another run is working in {folder}; wait for it or pass another --out") from error
        yield


def _look_at_sources(recipe: Recipe, stages: Sequence[Stage]) -> None:
    """A checkpoint, a data file or a package that is missing is told before hours of work, not after."""
    for stage in stages:
        if stage.reason_to_skip(recipe) is None:
            require(stage.tools, what=f"stage '{stage.name}'")
            stage.sources(recipe)


def _refuse_changes(recipe: Recipe, manifest: Manifest, stages: Sequence[Stage]) -> None:
    """Before anything is done: nothing finished may be about to be replaced."""
    for stage in stages:
        record = manifest.stages.get(stage.name)
        if record is None or stage.reason_to_skip(recipe):
            continue
        if change := _change_of_request(stage, recipe, record):
            raise FileExistsError(
                f"{manifest.folder} holds another run: in stage '{stage.name}', {change}.\n"
                "Pass --force to replace that stage and what follows from it, or another --out."
            )
        if altered := manifest.altered_artifacts(stage.name):
            raise FileExistsError(
                f"{manifest.folder / altered[0]} was changed after stage '{stage.name}' wrote it; "
                "put it back, or pass --force to make it again"
            )


def _change_of_request(stage: Stage, recipe: Recipe, record: StageRecord) -> str | None:
    sources = stage.sources(recipe)
    known = {name: sha256 for name, sha256 in record.made_from.items() if name in sources}
    return describe_change(record.settings, stage.settings(recipe)) or describe_change(known, sources)


def _bring_up_to_date(stage: Stage, run: Run, manifest: Manifest, *, label: str) -> None:
    if reason := stage.reason_to_skip(run.recipe):
        say(f"{label} {stage.name}: skipped, {reason}")
        return
    made_from = stage.sources(run.recipe) | hash_paths(run.folder, stage.inputs(run.recipe))
    record = manifest.stages.get(stage.name)
    settings = stage.settings(run.recipe)
    reason = _reason_to_work(stage, manifest, record, settings=settings, made_from=made_from)
    if reason is None:
        assert record is not None
        stage.clean_up(run)
        say(f"{label} {stage.name}: unchanged, skipped (took {record.seconds:.1f} s)")
        return
    say(f"{label} {stage.name}: {stage.title}" + (f" (again: {reason})" if record is not None else ""))
    started = time.monotonic()
    with progress(stage.name) as job:
        outcome = stage.work(run, job)
    seconds = round(time.monotonic() - started, 2)
    artifacts = hash_paths(run.folder, stage.outputs(run.recipe))
    tools = tool_versions(("quietformer", *stage.tools))
    record = StageRecord(settings=settings, made_from=made_from, artifacts=artifacts, tools=tools, seconds=seconds)
    manifest.record(stage.name, record)
    stage.clean_up(run)
    say(f"{label} {stage.name}: {outcome} ({seconds:.1f} s)")


def _reason_to_work(
    stage: Stage,
    manifest: Manifest,
    record: StageRecord | None,
    *,
    settings: dict[str, Any],
    made_from: dict[str, str],
) -> str | None:
    """Why a stage has to run, None when its artifacts stand."""
    if record is None:
        return "never run"
    if missing := manifest.missing_artifacts(stage.name):
        return f"{missing[0]} is missing"
    if altered := manifest.altered_artifacts(stage.name):
        return f"{altered[0]} was changed"
    return describe_change(record.settings, settings) or describe_change(record.made_from, made_from)


def _remove_temporary_files(folder: Path) -> None:
    """What a killed run left: files and checkpoint folders are written to hidden names beside the target."""
    for path in [path for path in folder.rglob(".*") if _TEMPORARY_NAME.fullmatch(path.name)]:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
