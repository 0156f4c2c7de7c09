"""A step after training, named by its recipe: finds the run directory and hands its files to the ``quietformer`` command.

In the images a recipe stands for the run that ``quietformer run RECIPE`` left below ``runs/``; a run directory may be named instead.

Example: python docker/run_step.py build recipes/minilm-retrofit.toml --optimization-level 5
"""

from __future__ import annotations

import json
import os
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

RUNS = Path("runs")
ENGINES = "tensorrt"
"""Folder of a run directory with the engines of ``build``."""
INT8 = "int8"
"""Its folder of INT8."""
MODELS = Path("/models/repository")
"""Triton's model repository, inside a volume: a folder that can be replaced as a whole."""
CACHE = Path("/cache")


def run_directory(name: str) -> Path:
    """The run directory of a recipe, or one named itself.

    Raises:
        FileNotFoundError: there is none.
        ValueError: not a recipe.
    """
    path = Path(name)
    if path.suffix == ".toml":
        if not path.is_file():
            raise FileNotFoundError(f"no recipe at {path}")
        try:
            recipe = tomllib.loads(path.read_text(encoding="utf-8"))
        except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ValueError(f"{path} is not TOML: {error}") from error
        if not isinstance(recipe.get("name"), str):
            raise ValueError(f"{path} has no name; expected a recipe")
        path = RUNS / recipe["name"]
    if not (path / "manifest.json").is_file():
        raise FileNotFoundError(f"no finished run at {path}: run 'docker compose run train RECIPE' first")
    return path


def build_arguments(run: Path) -> list[str]:
    """Float and INT8 engines of the run's model, in float16 where the recipe asked for it, with the recipe's shapes."""
    graph = _existing(run, "model.fp16.onnx", "model.onnx")
    engine = _recipe(run).get("engine", {})
    shapes = [
        argument
        for option in ("min", "opt", "max")
        if (shape := engine.get(f"{option}_shape"))
        for argument in (f"--{option}-shapes", shape)
    ]
    return [
        *("build", str(graph), "--calibration", str(_existing(run, "calibration.json"))),
        *("--out", str(run / ENGINES), "--backend", "tensorrt", *shapes),
        *("--timing-cache", str(CACHE / "timing.cache")),
    ]


def serve_arguments(run: Path) -> list[str]:
    """The embedded server; it listens on every address of its container, whose port compose.yaml opens to this machine only."""
    return ["serve", str(run), "--host", "0.0.0.0", "--port", "8000"]


def bench_arguments(run: Path) -> list[str]:
    """The engines of ``build``, float first, in turns, at the recipe's shapes, fed with the run's own held-out texts."""
    engines = sorted((folder for folder in _engines(run)), key=lambda folder: folder.name == INT8)
    shapes = [argument for shape in _recipe(run).get("bench", {}).get("shapes", ()) for argument in ("--shapes", shape)]
    texts = run / "data" / "held-out.jsonl"
    data = ["--data", str(texts)] if texts.is_file() else []
    return ["bench", *map(str, engines), "--backend", "tensorrt", *shapes, *data]


def triton_repo_arguments(run: Path) -> list[str]:
    """The model repository that Triton serves: the INT8 plan, for batches up to what its profile takes.

    Texts are left out: Triton's image has no tokenizers.
    """
    engine = next((folder for folder in _engines(run) if folder.name == INT8), None)
    if engine is None:
        raise FileNotFoundError(f"no INT8 engine in {run / ENGINES}: run 'docker compose run build RECIPE' first")
    profile = json.loads((engine / "engine.json").read_text(encoding="utf-8"))["profile"]
    largest = min((shapes["max"][0] for shapes in profile.values()), default=1)
    return [
        *("triton-repo", str(engine), "--runtime", "tensorrt", "--out", str(MODELS), "--name", run.name),
        *("--max-batch-size", str(largest), "--no-texts", "--force"),
    ]


STEPS: dict[str, Callable[[Path], list[str]]] = {
    "build": build_arguments,
    "bench": bench_arguments,
    "serve": serve_arguments,
    "triton-repo": triton_repo_arguments,
}


def command(arguments: Sequence[str]) -> list[str]:
    """The command line to run.

    Args:
        arguments: step, recipe or run directory, and options that are passed on; ``STEP --help`` asks for the command's own help.

    Raises:
        FileNotFoundError: no recipe, run or artifact.
        ValueError: no such step, no recipe.
    """
    step, *rest = arguments or ("",)
    if step not in STEPS:
        raise ValueError(f"unknown step '{step}'; known are {', '.join(STEPS)}, each followed by a recipe")
    if not rest:
        raise ValueError(f"{step} needs a recipe or a run directory")
    quietformer = [sys.executable, "-m", "quietformer"]
    if rest[0].startswith("-"):
        return [*quietformer, step, *rest]
    return [*quietformer, *STEPS[step](run_directory(rest[0])), *rest[1:]]


def _engines(run: Path) -> list[Path]:
    """Folders of the engines that ``build`` made."""
    folders = sorted(path.parent for path in run.glob(f"{ENGINES}/*/engine.json"))
    if not folders:
        raise FileNotFoundError(f"no engines in {run / ENGINES}: run 'docker compose run build RECIPE' first")
    return folders


def _recipe(run: Path) -> dict[str, Any]:
    """The resolved recipe of a run."""
    return tomllib.loads((run / "recipe.toml").read_text(encoding="utf-8"))


def _existing(run: Path, *names: str) -> Path:
    """The first of the files that is there."""
    for name in names:
        if (run / name).is_file():
            return run / name
    raise FileNotFoundError(f"{run} holds no {names[-1]}: its run has not come so far")


def main() -> None:
    """Entry point: becomes the command, so that it gets the signals itself."""
    if sys.argv[1:] in ([], ["--help"], ["-h"]):
        print(__doc__)
        print(f"Steps: {', '.join(STEPS)}")
        return
    try:
        line = command(sys.argv[1:])
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    os.execv(line[0], line)


if __name__ == "__main__":
    main()
