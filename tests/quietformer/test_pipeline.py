from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from deploy.files import write_atomically
from quietformer.manifest import Manifest, hash_source
from quietformer.pipeline import run_stages
from quietformer.progress import Job
from quietformer.recipe.recipe import Recipe
from quietformer.stages.layout import RECIPE_FILE
from quietformer.stages.stage import Run, Stage


def recipe(*, steps: int = 3, checkpoint: str = "somewhere") -> Recipe:
    return Recipe.model_validate(
        {"name": "tiny", "model": {"checkpoint": checkpoint}, "retrofit": {"steps": steps, "warmup_steps": 0}}
    )


class Write(Stage):
    name, title = "write", "writes numbers"

    def settings(self, recipe: Recipe) -> dict[str, Any]:
        return {"steps": recipe.retrofit.steps}

    def sources(self, recipe: Recipe) -> dict[str, str]:
        source = Path(str(recipe.model.checkpoint))
        return {"checkpoint": hash_source(source)} if source.exists() else {}

    def outputs(self, recipe: Recipe) -> Sequence[str]:
        return ("numbers.txt", "folder")

    def work(self, run: Run, job: Job) -> str:
        write_atomically(run.path("folder/part"), "part")
        write_atomically(run.path("numbers.txt"), "1\n" * run.recipe.retrofit.steps)
        return "written"


class Count(Stage):
    name, title = "count", "counts them"

    def settings(self, recipe: Recipe) -> dict[str, Any]:
        return {}

    def inputs(self, recipe: Recipe) -> Sequence[str]:
        return ("numbers.txt",)

    def outputs(self, recipe: Recipe) -> Sequence[str]:
        return ("count.txt",)

    def work(self, run: Run, job: Job) -> str:
        write_atomically(run.path("count.txt"), str(len(run.path("numbers.txt").read_text().splitlines())))
        return "counted"


class Never(Stage):
    name, title = "never", "has nothing to do"

    def settings(self, recipe: Recipe) -> dict[str, Any]:
        return {}

    def outputs(self, recipe: Recipe) -> Sequence[str]:
        return ("never.txt",)

    def reason_to_skip(self, recipe: Recipe) -> str | None:
        return "the extra is missing"

    def work(self, run: Run, job: Job) -> str:
        raise AssertionError


STAGES = (Write(), Count(), Never())


def test_a_run_leaves_artifacts_recipe_and_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_stages(recipe(), tmp_path / "run", STAGES)
    assert (tmp_path / "run" / "count.txt").read_text() == "3"
    assert (tmp_path / "run" / RECIPE_FILE).read_text() == recipe().to_toml()
    assert set(Manifest.load(tmp_path / "run").stages) == {"write", "count"}
    told = capsys.readouterr()
    assert not told.out
    assert "[3/3] never: skipped, the extra is missing" in told.err


def test_a_second_run_skips_every_stage_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_stages(recipe(), tmp_path, STAGES)
    stamp = (tmp_path / "numbers.txt").stat().st_mtime_ns
    capsys.readouterr()
    run_stages(recipe(), tmp_path, STAGES)
    told = capsys.readouterr().err
    assert told.count("unchanged, skipped") == 2
    assert (tmp_path / "numbers.txt").stat().st_mtime_ns == stamp


def test_other_settings_are_refused_with_the_difference_named(tmp_path: Path) -> None:
    run_stages(recipe(), tmp_path, STAGES)
    with pytest.raises(FileExistsError, match=r"in stage 'write', steps was 3 and is 4\.\nPass --force"):
        run_stages(recipe(steps=4), tmp_path, STAGES)
    assert (tmp_path / "count.txt").read_text() == "3"
    assert (tmp_path / RECIPE_FILE).read_text() == recipe().to_toml()


def test_force_repeats_what_changed_and_what_follows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_stages(recipe(), tmp_path, STAGES)
    capsys.readouterr()
    run_stages(recipe(steps=4), tmp_path, STAGES, force=True)
    assert (tmp_path / "count.txt").read_text() == "4"
    told = capsys.readouterr().err
    assert "(again: steps was 3 and is 4)" in told
    assert "(again: numbers.txt was" in told


def test_force_leaves_what_did_not_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_stages(recipe(), tmp_path, STAGES)
    capsys.readouterr()
    run_stages(recipe(), tmp_path, STAGES, force=True)
    assert capsys.readouterr().err.count("unchanged, skipped") == 2


def test_another_source_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "model"
    source.write_text("a")
    run_stages(recipe(checkpoint=str(source)), tmp_path / "run", STAGES)
    source.write_text("b")
    with pytest.raises(FileExistsError, match=r"in stage 'write', checkpoint was"):
        run_stages(recipe(checkpoint=str(source)), tmp_path / "run", STAGES)


def test_every_source_is_looked_at_before_any_work(tmp_path: Path) -> None:
    class Late(Count):
        name = "late"

        def sources(self, recipe: Recipe) -> dict[str, str]:
            raise FileNotFoundError("no data at nowhere.csv")

    with pytest.raises(FileNotFoundError, match=r"nowhere\.csv"):
        run_stages(recipe(), tmp_path, (Write(), Late()))
    assert not (tmp_path / "numbers.txt").exists()


def test_a_hand_made_change_is_named_and_kept(tmp_path: Path) -> None:
    run_stages(recipe(), tmp_path, STAGES)
    (tmp_path / "folder" / "part").write_text("mine")
    with pytest.raises(FileExistsError, match=r"folder/part was changed after stage 'write' wrote it"):
        run_stages(recipe(), tmp_path, STAGES)
    assert (tmp_path / "folder" / "part").read_text() == "mine"
    run_stages(recipe(), tmp_path, STAGES, force=True)
    assert (tmp_path / "folder" / "part").read_text() == "part"


def test_a_missing_artifact_is_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_stages(recipe(), tmp_path, STAGES)
    (tmp_path / "numbers.txt").unlink()
    capsys.readouterr()
    run_stages(recipe(), tmp_path, STAGES)
    told = capsys.readouterr().err
    assert "(again: numbers.txt is missing)" in told
    assert "count: unchanged, skipped" in told


def test_a_foreign_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(FileExistsError, match=r"is not a run directory \(it holds 'thesis\.tex'\)"):
        run_stages(recipe(), tmp_path, STAGES)
    run_stages(recipe(), tmp_path, STAGES, force=True)
    assert (tmp_path / "thesis.tex").read_text() == "precious"


def test_a_file_as_run_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(NotADirectoryError, match="is a file"):
        run_stages(recipe(), tmp_path / "run", STAGES)


def test_leftovers_of_a_killed_writer_are_removed_and_other_hidden_files_kept(tmp_path: Path) -> None:
    run_stages(recipe(), tmp_path, STAGES)
    for name in (".numbers.txt.ab12_x9z.txt", ".gitignore"):
        (tmp_path / name).write_text("")
    run_stages(recipe(), tmp_path, STAGES)
    assert not (tmp_path / ".numbers.txt.ab12_x9z.txt").exists()
    assert (tmp_path / ".gitignore").exists()


KILLED = textwrap.dedent("""
    import sys, time
    from pathlib import Path
    from quietformer.pipeline import run_stages
    from quietformer.recipe.recipe import Recipe

    sys.path.insert(0, {tests!r})
    from test_pipeline import Count, Write, recipe
    from deploy.files import atomic_path

    class Slow(Count):
        def work(self, run, job):
            with atomic_path(run.path("count.txt")) as temporary:
                temporary.write_text("half")
                print("working", flush=True)
                time.sleep(60)

    run_stages(recipe(), Path({folder!r}), (Write(), Slow()))
""")


def test_a_killed_run_leaves_no_half_written_artifact_and_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = KILLED.format(tests=str(Path(__file__).parent), folder=str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"working\n"
        with pytest.raises(BlockingIOError, match="another run is working"):
            run_stages(recipe(), tmp_path, STAGES)
        os.kill(process.pid, signal.SIGKILL)
    assert not (tmp_path / "count.txt").exists()
    run_stages(recipe(), tmp_path, STAGES)
    assert "write: unchanged, skipped" in capsys.readouterr().err
    assert (tmp_path / "count.txt").read_text() == "3"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [
        ".lock", "count.txt", "folder", "manifest.json", "numbers.txt", "recipe.toml",
    ]  # fmt: skip
