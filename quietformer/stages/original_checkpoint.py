"""The float original that a recipe names: its folder, and its identity for the manifest."""

from __future__ import annotations

from pathlib import Path

from quietformer.recipe import Recipe
from train.checkpoint_files import checkpoint_sha256, load_tokenizer_file, resolve_checkpoint


def original_folder(recipe: Recipe) -> Path:
    """Folder of the original checkpoint.

    Raises:
        FileNotFoundError: no such folder.
        NotADirectoryError: it is a file.
        ImportError: the package that should hold it is not installed.
        ValueError: the package holds no checkpoint, or several.
    """
    return resolve_checkpoint(recipe.model.checkpoint)


def original_source(recipe: Recipe) -> dict[str, str]:
    """sha256 of config and weights, under the name ``checkpoint``; errors as for :func:`original_folder`."""
    return {"checkpoint": checkpoint_sha256(original_folder(recipe))}


def original_tokenizer(recipe: Recipe) -> Path:
    """The original's ``tokenizer.json``, which the retrofitted model shares."""
    return load_tokenizer_file(original_folder(recipe))
