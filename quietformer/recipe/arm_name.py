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
    if recipe.train is not None:
        return " + ".join([*parts, *(["penalty"] if recipe.train.penalty_weight > 0 else [])]) or "vanilla"
    retrofit = recipe.retrofit
    steps = {
        "prefix": bool(retrofit.prefix),
        "rotation": retrofit.rotate,
        "scales": retrofit.equalize,
        "penalty": retrofit.steps > 0 and retrofit.penalty_weight > 0,
        "rounding": retrofit.round_weights,
    }
    parts += [name for name, done in steps.items() if done]
    return " + ".join(parts) or ("distillation only" if retrofit.steps else "vanilla")
