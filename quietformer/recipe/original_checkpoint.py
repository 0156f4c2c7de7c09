"""The float original that a recipe names: its folder, and its identity for the manifest."""

from __future__ import annotations

from pathlib import Path

from quietformer.recipe.recipe import Recipe
from quietformer.recipe.text_shape import parse_shape
from train.checkpoints.checkpoint_files import checkpoint_sha256, read_positions
from train.checkpoints.checkpoint_location import resolve_checkpoint


def original_folder(recipe: Recipe) -> Path:
    """Folder or GGUF file of the original checkpoint.

    Raises:
        FileNotFoundError: no such folder.
        NotADirectoryError: it is a file.
        ImportError: the package that should hold it is not installed.
        ValueError: the package holds no checkpoint, or several.
    """
    assert recipe.model.checkpoint is not None
    return resolve_checkpoint(recipe.model.checkpoint)


def original_source(recipe: Recipe) -> dict[str, str]:
    """sha256 of config and weights, under the name ``checkpoint``.

    Every length of the recipe is compared with the model's positions as well: a run asks for its sources before it
    works, so a length that only the last stage would stumble over is refused at once.

    Raises:
        ValueError: a length of the recipe is above the positions (images have no length); and as :func:`original_folder`.
    """
    folder = original_folder(recipe)
    _check_lengths(recipe, folder)
    return {"checkpoint": checkpoint_sha256(folder)}


def _check_lengths(recipe: Recipe, folder: Path) -> None:
    if recipe.data.images is not None:
        return
    positions = read_positions(folder)
    trained = {"retrofit.max_length": recipe.retrofit.max_length}
    if recipe.train is not None:
        trained = {"train.length": recipe.train.length}
    lengths = {**trained, "calibrate.length": recipe.calibrate.length}
    if recipe.export.length != "dynamic":
        lengths["export.length"] = recipe.export.length
    lengths |= {f"bench.shapes, {shape}": parse_shape(shape)[1] for shape in recipe.bench.shapes}
    if recipe.engine is not None:
        lengths[f"engine.max_shape, {recipe.engine.max_shape}"] = parse_shape(recipe.engine.max_shape)[1]
    for name, length in lengths.items():
        if positions is not None and length > positions:
            raise ValueError(f"{name}: length {length} is above the {positions} positions of {folder}")
