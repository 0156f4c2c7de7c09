"""The recipes of the paper's models: each loads, in every arm that its head names, and builds its model without memory."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from quietformer.recipe.recipe import demo_recipe_path, load_recipe
from quietformer.training.training_setup import describe
from train.conversion.architecture import build_model

RECIPES = demo_recipe_path().parent
_LAYER = 12 * 768**2 + 13 * 768
"""Matrices, biases and norms of one layer of width 768."""
PARAMETERS = {
    "bert-base": 109_514_298,
    "opt-125m": 125_239_296,
    "opt-350m": 331_196_416,
    "opt-1.3b": 1_315_758_080,
    "vit-s16": 22_050_664,
    "bert-6l": 109_514_298 - 6 * _LAYER,
    "opt-6l": 125_239_296 - 6 * _LAYER,
}
"""Of the vanilla models: the published sizes, and for six layers the twelve-layer model without the other six."""
_OVERRIDE = re.compile(r"--set (?:'([^']*)'|(\S+?)(?:;|$| ))")


def _arms(name: str) -> list[tuple[str, ...]]:
    """Overrides that the head names, one by one, and none."""
    text = (RECIPES / f"{name}.toml").read_text(encoding="utf-8")
    head = "\n".join(line for line in text.splitlines() if line.startswith("#"))
    found = [quoted or bare for quoted, bare in _OVERRIDE.findall(head)]
    return [(), *((override,) for override in found if not override.startswith("data."))]


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_vanilla_model_has_as_many_parameters_as_the_published_one(name: str) -> None:
    if name.startswith("vit"):
        pytest.importorskip("timm")
    recipe = load_recipe(RECIPES / f"{name}.toml", ["attention={}"])
    with torch.device("meta"):
        model = build_model(describe(recipe, recipe.model.config), recipe.attention.settings(), seed=0)
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
    assert model.num_parameters() == PARAMETERS[name]


@pytest.mark.parametrize("name", PARAMETERS)
def test_every_arm_that_the_head_names_builds_with_its_gates_and_norms(name: str) -> None:
    if name.startswith("vit"):
        pytest.importorskip("timm")
    arms = _arms(name)
    assert len(arms) >= 2, "as written, and vanilla"
    for overrides in arms:
        recipe = load_recipe(RECIPES / f"{name}.toml", overrides)
        settings = recipe.attention.settings()
        with torch.device("meta"):
            model = build_model(describe(recipe, recipe.model.config), settings, seed=0)
        added = model.num_parameters() - PARAMETERS[name]
        if settings.gate == "none" and not settings.patch_norm:
            assert added == 0, overrides
        else:
            assert 0 < added < 0.01 * PARAMETERS[name], overrides


def test_the_small_siblings_differ_from_the_full_models_in_size_alone() -> None:
    for small, full in (("bert-small", "bert-base"), ("opt-small", "opt-125m"), ("vit-small", "vit-s16")):
        one, other = (load_recipe(RECIPES / f"{name}.toml") for name in (small, full))
        assert one.train is not None
        assert other.train is not None
        assert one.train.objective == other.train.objective
        assert one.train.decay_norms == other.train.decay_norms


def test_recipes_lie_where_the_demo_finds_its_own() -> None:
    assert {path.stem for path in Path(RECIPES).glob("*.toml")} >= PARAMETERS.keys()
