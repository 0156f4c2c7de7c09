"""Stages ``original-quantize`` and ``quantize``: W8A8 graphs in every profile, from the first seed's ranges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deploy.calibration_cache import CalibrationCache
from deploy.quantize import quantize
from quietformer.progress import Job
from quietformer.recipe import Recipe
from quietformer.stages.layout import Variant, calibration_cache, float_graph, int8_graph
from quietformer.stages.run_data import learning_identity, learning_inputs
from quietformer.stages.stage import Run, Stage


class QuantizeGraphs(Stage):
    """Q/DQ graphs of one of the models."""

    tools = ("onnx", "numpy")

    def __init__(self, variant: Variant) -> None:
        self._variant: Variant = variant
        self.name = "quantize" if variant != "original" else "original-quantize"
        self.title = f"W8A8 graphs of the {variant} model"

    def settings(self, recipe: Recipe) -> dict[str, Any]:
        """The recipe's table, and the method that the ranges must come from."""
        return recipe.quantize.model_dump(mode="json") | {"method": recipe.calibrate.method}

    def inputs(self, recipe: Recipe) -> Sequence[str]:
        """The float graph, the first seed's ranges, and the texts that they must come from."""
        seed = recipe.calibrate.seeds[0]
        return (float_graph(self._variant), calibration_cache(self._variant, recipe, seed), *learning_inputs(recipe))

    def outputs(self, recipe: Recipe) -> Sequence[str]:
        """One graph per profile, with its weights outside of it where they are large."""
        graphs = [int8_graph(self._variant, recipe, profile) for profile in recipe.quantize.profiles]
        return tuple(name for graph in graphs for name in (graph, f"{graph}.*.data"))

    def work(self, run: Run, job: Job) -> str:
        """Quantize for each profile."""
        recipe = run.recipe
        graph = run.path(float_graph(self._variant))
        cache = CalibrationCache.load(run.path(calibration_cache(self._variant, recipe, recipe.calibrate.seeds[0])))
        cache.check(graph, data=learning_identity(run), method=recipe.calibrate.method)
        outcomes = []
        for profile in recipe.quantize.profiles:
            summary = quantize(
                graph,
                cache,
                run.path(int8_graph(self._variant, recipe, profile)),
                profile=profile,
                weights=recipe.quantize.weights,
                force=True,
                progress=job.tell,
            )
            outcomes.append(f"{profile} {summary.quantized_bytes / 1e6:.0f} MB")
        return ", ".join(outcomes)
