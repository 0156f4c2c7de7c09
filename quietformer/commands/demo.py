"""``quietformer demo``: the shipped recipe on a real model that a Python package brings along."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quietformer.commands.run import Force, Overrides


def demo(
    *,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Run directory.")] = Path("runs/demo"),
    data: Annotated[
        str | None,
        typer.Option(
            "--data", metavar="PATH", help="Texts to distil from; documentation of Python packages by default."
        ),
    ] = None,
    task_data: Annotated[
        str | None, typer.Option("--task-data", metavar="PATH", help="Scored sentence pairs: also run the task 'sts'.")
    ] = None,
    overrides: Overrides = None,
    force: Force = False,
) -> None:
    """Make a real model survive W8A8, and show it.

    all-MiniLM-L6-v2 from a Python package, retrofitted, quantized and measured: 10 to 15 minutes on two cores.

    Example: quietformer demo --out runs/demo --task-data sts-dev.csv
    """
    from quietformer.recipe.recipe import demo_recipe_path, load_recipe
    from quietformer.whole_run import run_recipe

    paths = {"data.texts": data, "compare.sts.data": task_data}
    chosen = [f"{key}={json_string(path)}" for key, path in paths.items() if path is not None]
    run_recipe(load_recipe(demo_recipe_path(), [*chosen, *(overrides or [])]), out, force=force)


def json_string(text: str) -> str:
    """A text as a TOML string, whatever it looks like."""
    import json

    return json.dumps(text, ensure_ascii=False)
