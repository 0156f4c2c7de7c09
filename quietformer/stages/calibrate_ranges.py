"""Stages ``original-calibrate`` and ``calibrate``: ranges of the activations, one cache per random subset of the texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quietformer.calibration import CalibrationPlan, calibrate_on_data
from quietformer.progress import Job
from quietformer.recipe import Recipe
from quietformer.stages.layout import TRAIN_TEXTS, Variant, calibration_cache, float_graph, tokenizer
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

    def inputs(self, recipe: Recipe) -> Sequence[str]:
        """Graph, tokenizer and texts."""
        return (float_graph(self._variant), tokenizer(self._variant), TRAIN_TEXTS)

    def outputs(self, recipe: Recipe) -> Sequence[str]:
        """One cache per seed."""
        return tuple(calibration_cache(self._variant, recipe, seed) for seed in recipe.calibrate.seeds)

    def work(self, run: Run, job: Job) -> str:
        """Run the float graph with the watched tensors as further outputs."""
        settings = run.recipe.calibrate
        plan = CalibrationPlan(
            method=settings.method,
            batches=settings.batches,
            batch_size=settings.batch_size,
            length=settings.length,
        )
        graph = run.path(float_graph(self._variant))
        for seed in settings.seeds:
            cache = calibrate_on_data(graph, run.path(TRAIN_TEXTS), plan, seed=seed, job=job)
            cache.save(run.path(calibration_cache(self._variant, run.recipe, seed)), force=True)
        return f"{len(settings.seeds)} subsets of {settings.batches * settings.batch_size} texts, {settings.method}"
