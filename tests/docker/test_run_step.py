from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from docker.run_step import STEPS, command
from quietformer.cli import app

RECIPE = 'name = "tiny"\n'
RESOLVED = """
name = "tiny"
[engine]
min_shape = "1x1"
opt_shape = "1x64"
max_shape = "4x64"
[bench]
shapes = ["1x64", "4x64"]
"""
FILES = (
    "manifest.json",
    "model.onnx",
    "model.fp16.onnx",
    "calibration.json",
    "data/held-out.jsonl",
    "tensorrt/int8/engine.json",
    "tensorrt/float16/engine.json",
)


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What an image sees: recipes, and a run of one."""
    run = tmp_path / "runs" / "tiny"
    for name in FILES:
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).touch()
    (run / "recipe.toml").write_text(RESOLVED)
    for name in ("int8", "float16"):
        (run / "tensorrt" / name / "engine.json").write_text(json.dumps({"profile": {"input_ids": {"max": [4, 64]}}}))
    (tmp_path / "tiny.toml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def parsed(line: list[str]) -> dict[str, Any]:
    """What the command line of quietformer makes of the arguments; nothing runs."""
    assert line[:3] == [sys.executable, "-m", "quietformer"]
    group = typer.main.get_command(app)
    name, *arguments = line[3:]
    found = group.get_command(None, name)  # type: ignore[attr-defined]
    assert found is not None, f"quietformer has no command '{name}'"
    return dict(found.make_context(name, arguments).params)


@pytest.mark.usefixtures("workplace")
@pytest.mark.parametrize("step", STEPS)
def test_every_step_is_a_command_with_options_that_it_knows(step: str) -> None:
    assert parsed(command([step, "tiny.toml"])) == parsed(command([step, "runs/tiny"]))


@pytest.mark.usefixtures("workplace")
def test_build_takes_the_float16_graph_and_the_shapes_of_the_recipe() -> None:
    found = parsed(command(["build", "tiny.toml", "--optimization-level", "5"]))
    assert found["model"] == Path("runs/tiny/model.fp16.onnx")
    assert found["out"] == Path("runs/tiny/tensorrt")
    assert found["opt_shapes"] == "1x64"
    assert found["max_shapes"] == "4x64"
    assert found["optimization_level"] == 5


def test_build_takes_the_float32_graph_and_the_usual_shapes_where_the_run_has_no_others(workplace: Path) -> None:
    (workplace / "runs" / "tiny" / "model.fp16.onnx").unlink()
    (workplace / "runs" / "tiny" / "recipe.toml").write_text(RECIPE)
    found = parsed(command(["build", "tiny.toml"]))
    assert found["model"] == Path("runs/tiny/model.onnx")
    assert found["opt_shapes"] is None


@pytest.mark.usefixtures("workplace")
def test_bench_measures_float_before_int8_at_the_shapes_of_the_recipe_with_texts_of_the_run() -> None:
    found = parsed(command(["bench", "tiny.toml", "--repeats", "5"]))
    assert list(found["artifacts"]) == [Path("runs/tiny/tensorrt/float16"), Path("runs/tiny/tensorrt/int8")]
    assert list(found["shapes"]) == ["1x64", "4x64"]
    assert found["data"] == "runs/tiny/data/held-out.jsonl"
    assert found["repeats"] == 5


@pytest.mark.usefixtures("workplace")
def test_triton_gets_the_int8_plan_under_the_name_of_the_run_for_batches_that_it_takes() -> None:
    found = parsed(command(["triton-repo", "tiny.toml"]))
    assert found["artifact"] == Path("runs/tiny/tensorrt/int8")
    assert (found["name"], found["max_batch_size"], found["texts"]) == ("tiny", 4, False)


def test_steps_after_build_name_it_where_there_is_no_engine(workplace: Path) -> None:
    (workplace / "runs" / "tiny" / "tensorrt" / "int8" / "engine.json").unlink()
    with pytest.raises(FileNotFoundError, match="no INT8 engine in runs/tiny/tensorrt: run 'docker compose run build"):
        command(["triton-repo", "tiny.toml"])
    (workplace / "runs" / "tiny" / "tensorrt" / "float16" / "engine.json").unlink()
    with pytest.raises(FileNotFoundError, match="no engines in runs/tiny/tensorrt"):
        command(["bench", "tiny.toml"])


def test_what_is_missing_is_named_with_the_step_that_makes_it(workplace: Path) -> None:
    run = workplace / "runs" / "tiny"
    (run / "calibration.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"tiny holds no calibration\.json"):
        command(["build", "tiny.toml"])
    (run / "manifest.json").unlink()
    with pytest.raises(
        FileNotFoundError, match="no finished run at runs/tiny: run 'docker compose run train RECIPE' first"
    ):
        command(["build", "tiny.toml"])
    with pytest.raises(FileNotFoundError, match=r"no recipe at other\.toml"):
        command(["build", "other.toml"])


@pytest.mark.usefixtures("workplace")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "unknown step ''; known are build"),
        (["deploy", "tiny.toml"], "unknown step 'deploy'"),
        (["build"], "build needs a recipe"),
    ],
)
def test_other_uses_are_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        command(arguments)


def test_a_recipe_that_is_none_is_refused(workplace: Path) -> None:
    (workplace / "broken.toml").write_text("name = [")
    with pytest.raises(ValueError, match=r"broken\.toml is not TOML"):
        command(["build", "broken.toml"])
    (workplace / "nameless.toml").write_text("[model]\n")
    with pytest.raises(ValueError, match=r"nameless\.toml has no name"):
        command(["build", "nameless.toml"])
