"""Stages ``original-calibrate`` and ``calibrate``: ranges of the activations, one cache per random subset of the data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quietformer.graph_data.calibration import calibrate_on_data
from quietformer.progress import Job
from quietformer.recipe.recipe import Recipe
from quietformer.stages.layout import Variant, calibration_cache, float_graph
from quietformer.stages.run_data import (
    calibration_plan,
    companions,
    images_source,
    learning_data,
    learning_inputs,
    reads_images,
)
from quietformer.stages.stage import Run, Stage


class CalibrateRanges(Stage):
    """Statistics of one of the float graphs, on the same subsets for both."""

    tools = ("onnxruntime", "numpy", "tokenizers")

    def __init__(self, variant: Variant) -> None:
        self._variant: Variant = variant
        self.name = "calibrate" if variant != "original" else "original-calibrate"
        self.title = f"ranges of the {variant} model's activations"

    def settings(self, recipe: Recipe) -> dict[str, Any]:
        """The recipe's table."""
        return recipe.calibrate.model_dump(mode="json")

    def sources(self, recipe: Recipe) -> dict[str, str]:
        """Images."""
        return images_source(recipe)

    def inputs(self, recipe: Recipe) -> Sequence[str]:
        """Graph, tokenizer and texts."""
        return (float_graph(self._variant), *companions(recipe, self._variant), *learning_inputs(recipe))

    def outputs(self, recipe: Recipe) -> Sequence[str]:
        """One cache per seed."""
        return tuple(calibration_cache(self._variant, recipe, seed) for seed in recipe.calibrate.seeds)

    def work(self, run: Run, job: Job) -> str:
        """Run the float graph with the watched tensors as further outputs."""
        settings = run.recipe.calibrate
        plan = calibration_plan(run.recipe)
        graph = run.path(float_graph(self._variant))
        for seed in settings.seeds:
            cache = calibrate_on_data(graph, learning_data(run), plan, seed=seed, job=job)
            cache.save(run.path(calibration_cache(self._variant, run.recipe, seed)), force=True)
        what = "images" if reads_images(run.recipe) else "texts"
        return f"{len(settings.seeds)} subsets of {settings.batches * settings.batch_size} {what}, {settings.method}"
