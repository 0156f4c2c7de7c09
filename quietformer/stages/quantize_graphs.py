"""Stages ``original-quantize`` and ``quantize``: W8A8 graphs in every profile, from the first seed's ranges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deploy.calibration.calibration_cache import CalibrationCache
from quietformer.progress import Job
from quietformer.recipe.recipe import Recipe
from quietformer.recipe.sections import Profile
from quietformer.stages.layout import (
    Variant,
    calibration_cache,
    float16_graph,
    float16_profiles,
    float16_quantized_graph,
    float_graph,
    int8_graph,
)
from quietformer.stages.quantize_as_told import quantize_as_told
from quietformer.stages.run_data import learning_identity, learning_inputs
from quietformer.stages.site_decisions import check_switches, decided_sites, timing_settings
from quietformer.stages.stage import Run, Stage


class QuantizeGraphs(Stage):
    """Q/DQ graphs of one of the models."""

    tools = ("onnx", "numpy")

    def __init__(self, variant: Variant) -> None:
        self._variant: Variant = variant
        self.name = "quantize" if variant != "original" else "original-quantize"
        self.title = f"W8A8 graphs of the {variant} model"

    def settings(self, recipe: Recipe) -> dict[str, Any]:
        """The recipe's table, the method that the ranges must come from, and how open switches are timed."""
        return recipe.quantize.model_dump(mode="json") | {"method": recipe.calibrate.method} | timing_settings(recipe)

    def sources(self, recipe: Recipe) -> dict[str, str]:
        """Nothing; but a switch that cannot be timed here is refused before a run works."""
        check_switches(recipe)
        return {}

    def inputs(self, recipe: Recipe) -> Sequence[str]:
        """The float graphs, the first seed's ranges, and the texts that they must come from."""
        cache = calibration_cache(self._variant, recipe, recipe.calibrate.seeds[0])
        return (*dict.fromkeys(source for source, _, _ in self._graphs(recipe)), cache, *learning_inputs(recipe))

    def outputs(self, recipe: Recipe) -> Sequence[str]:
        """One graph per profile and one in float16, with their weights outside of them where they are large."""
        return tuple(name for _, _, graph in self._graphs(recipe) for name in (graph, f"{graph}.*.data"))

    def _graphs(self, recipe: Recipe) -> list[tuple[str, Profile, str]]:
        """Float graph, profile and quantized graph of each piece of work."""
        graphs: list[tuple[str, Profile, str]] = [
            (float_graph(self._variant), profile, int8_graph(self._variant, recipe, profile))
            for profile in recipe.quantize.profiles
        ]
        graphs += [
            (float16_graph(self._variant), profile, float16_quantized_graph(self._variant, profile))
            for profile in float16_profiles(recipe)
        ]
        return graphs

    def work(self, run: Run, job: Job) -> str:
        """Quantize for each profile."""
        recipe = run.recipe
        cache = CalibrationCache.load(run.path(calibration_cache(self._variant, recipe, recipe.calibrate.seeds[0])))
        cache.check(run.path(float_graph(self._variant)), data=learning_identity(run), method=recipe.calibrate.method)
        sites = {
            profile: decided_sites(run, self._variant, cache, profile, job=job) for profile in recipe.quantize.profiles
        }
        outcomes = []
        for source, profile, graph in self._graphs(recipe):
            choice, decision = sites[profile]
            summary = quantize_as_told(
                recipe,
                run.path(source),
                cache,
                run.path(graph),
                profile=profile,
                choice=choice,
                decision=decision,
                progress=job.tell,
            )
            place = " in float16" if source == float16_graph(self._variant) else ""
            outcomes.append(f"{profile}{place} {summary.quantized_bytes / 1e6:.0f} MB")
        return ", ".join(outcomes)
