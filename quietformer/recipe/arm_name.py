"""What a recipe does against outliers, in a few words: the name of its arm in reports."""

from __future__ import annotations

from quietformer.recipe.recipe import Recipe


def arm_name(recipe: Recipe) -> str:
    """For example ``gates + penalty``, ``distillation only`` or ``vanilla`` where nothing is done."""
    attention = recipe.attention
    parts = []
    if attention.softmax != "vanilla":
        parts.append(f"{attention.softmax.replace('_', ' ')} softmax")
    if attention.gate != "none":
        parts.append("gates")
    if (recipe.train or recipe.retrofit).penalty_weight > 0:
        parts.append("penalty")
    return " + ".join(parts) or ("distillation only" if recipe.train is None else "vanilla")
