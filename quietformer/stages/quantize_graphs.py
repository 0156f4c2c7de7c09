"""Stages ``original-quantize`` and ``quantize``: W8A8 graphs in every profile, from the first seed's ranges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from deploy.calibration.calibration_cache import CalibrationCache
from deploy.quantization.bits import Bits
from deploy.quantization.quantize import QuantizeSummary, quantize
from quietformer.progress import Job
from quietformer.recipe.recipe import Recipe
from quietformer.stages.layout import (
    GPU_PROFILE,
    Variant,
    calibration_cache,
    float16_graph,
    float16_int8_graph,
    float_graph,
    has_float16_int8,
    int8_graph,
)
from quietformer.stages.run_data import learning_identity, learning_inputs
from quietformer.stages.stage import Run, Stage


def quantize_as_told(
    recipe: Recipe,
    source: Path,
    cache: CalibrationCache,
    out: Path,
    *,
    profile: str,
    progress: Callable[[str], None] | None = None,
) -> QuantizeSummary:
    """Quantize a graph of a run as the recipe's ``[quantize]`` says, replacing ``out``; raises as ``quantize`` does."""
    settings = recipe.quantize
    return quantize(
        source,
        cache,
        out,
        profile=profile,
        weights=settings.weights,
        choice=settings.choice(profile),
        bits=Bits.parse(settings.bits),
        force=True,
        progress=progress,
    )


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
        """The float graphs, the first seed's ranges, and the texts that they must come from."""
        cache = calibration_cache(self._variant, recipe, recipe.calibrate.seeds[0])
        return (*dict.fromkeys(source for source, _, _ in self._graphs(recipe)), cache, *learning_inputs(recipe))

    def outputs(self, recipe: Recipe) -> Sequence[str]:
        """One graph per profile and one in float16, with their weights outside of them where they are large."""
        return tuple(name for _, _, graph in self._graphs(recipe) for name in (graph, f"{graph}.*.data"))

    def _graphs(self, recipe: Recipe) -> list[tuple[str, str, str]]:
        """Float graph, profile and quantized graph of each piece of work."""
        graphs: list[tuple[str, str, str]] = [
            (float_graph(self._variant), profile, int8_graph(self._variant, recipe, profile))
            for profile in recipe.quantize.profiles
        ]
        if has_float16_int8(recipe):
            graphs.append((float16_graph(self._variant), GPU_PROFILE, float16_int8_graph(self._variant)))
        return graphs

    def work(self, run: Run, job: Job) -> str:
        """Quantize for each profile."""
        recipe = run.recipe
        cache = CalibrationCache.load(run.path(calibration_cache(self._variant, recipe, recipe.calibrate.seeds[0])))
        cache.check(run.path(float_graph(self._variant)), data=learning_identity(run), method=recipe.calibrate.method)
        outcomes = []
        for source, profile, graph in self._graphs(recipe):
            summary = quantize_as_told(
                recipe, run.path(source), cache, run.path(graph), profile=profile, progress=job.tell
            )
            place = " in float16" if source == float16_graph(self._variant) else ""
            outcomes.append(f"{profile}{place} {summary.quantized_bytes / 1e6:.0f} MB")
        return ", ".join(outcomes)
