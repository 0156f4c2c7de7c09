"""The images of a recipe, for the manifest."""

from __future__ import annotations

from pathlib import Path

from quietformer.manifest import hash_source
from quietformer.recipe import Recipe


def images_source(recipe: Recipe) -> dict[str, str]:
    """sha256 of the recipe's images, under the name ``images``; empty where it has none.

    Raises:
        FileNotFoundError: no such file or folder.
    """
    if recipe.data.images is None:
        return {}
    path = Path(recipe.data.images)
    if not path.exists():
        raise FileNotFoundError(f"no images at {path} (data.images)")
    return {"images": hash_source(path)}
