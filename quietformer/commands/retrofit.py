"""``quietformer retrofit``: the first stages of a recipe, up to the retrofitted checkpoint."""

from __future__ import annotations

from pathlib import Path

import typer

from quietformer.commands.run import Force, Out, Overrides, Recipe


def retrofit(recipe: Recipe, *, out: Out = None, overrides: Overrides = None, force: Force = False) -> None:
    """Run a recipe up to the retrofitted checkpoint.

    'quietformer run' with the same recipe and --out goes on from here.

    Example: quietformer retrofit recipes/minilm-retrofit.toml --out runs/minilm --set data.texts=corpus.txt
    """
    from quietformer.pipeline import run_stages
    from quietformer.recipe.recipe import load_recipe
    from quietformer.whole_run import learning_stages

    loaded = load_recipe(recipe, overrides or [])
    if loaded.train is not None:
        raise ValueError(f"{recipe} has a [train] table; run it with 'quietformer train {recipe}'")
    folder = out or Path("runs") / loaded.name
    run_stages(loaded, folder, learning_stages(loaded), force=force)
    typer.echo(folder / "checkpoint")
