"""``quietformer train``: the first stages of a recipe with ``[train]``, up to the trained checkpoint."""

from __future__ import annotations

from pathlib import Path

import typer

from quietformer.commands.run import Force, Out, Overrides, Recipe


def train(recipe: Recipe, *, out: Out = None, overrides: Overrides = None, force: Force = False) -> None:
    """Train a recipe's model from scratch, with its figures in float and simulated W8A8 on the way.

    'quietformer run' with the same recipe and --out goes on from here. On several GPUs of one machine: accelerate launch -m quietformer train RECIPE.

    Example: quietformer train recipes/bert-small.toml --out runs/bert --set data.texts=corpus.txt
    """
    from quietformer.pipeline import run_stages
    from quietformer.recipe.recipe import load_recipe
    from quietformer.stages.train_model import follow
    from quietformer.training.training_processes import FOLLOWERS, is_follower, leave
    from quietformer.whole_run import learning_stages

    loaded = load_recipe(recipe, overrides or [])
    if loaded.train is None:
        raise ValueError(f"{recipe} has no [train] table; run it with 'quietformer retrofit {recipe}'")
    folder = out or Path("runs") / loaded.name
    if is_follower():
        follow(loaded, folder)
    else:
        run_stages(loaded, folder, learning_stages(loaded), force=force)
        FOLLOWERS.dismiss(loaded)
        typer.echo(folder / "checkpoint")
    leave()
