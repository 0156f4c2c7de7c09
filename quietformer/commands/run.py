"""``quietformer run``: a recipe, stage by stage, with skip and resume."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Recipe = Annotated[Path, typer.Argument(metavar="RECIPE.toml", help="The recipe.")]
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Run directory; runs/NAME by default.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a key, for example --set retrofit.steps=200; repeatable."
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace artifacts that were made with other settings.")]


def run(recipe: Recipe, *, out: Out = None, overrides: Overrides = None, force: Force = False) -> None:
    """Run a recipe, stage by stage.

    Retrofit, export, calibrate, quantize, build, compare, bench, report. Finished stages are skipped, a killed run resumes. Exits 1 when a gate of the recipe fails.

    Example: quietformer run recipes/minilm-retrofit.toml --out runs/minilm --set retrofit.steps=200
    """
    from quietformer.recipe.recipe import load_recipe
    from quietformer.whole_run import run_recipe

    loaded = load_recipe(recipe, overrides or [])
    run_recipe(loaded, out or Path("runs") / loaded.name, force=force)
