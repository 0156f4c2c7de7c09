"""Stage ``engine``: engines from the graphs of a run, in float16 where there are such graphs.

Where a run compares and measures on CPUs, one engine of TensorRT-RTX is built from the made model's integers, without a GPU.
Where it does so on an engine backend, each model gets a float engine and an INT8 one, for the GPU at hand. Profile ``fp8`` adds one of FP8.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

from deploy.backends.cuda_devices import cuda_devices
from deploy.backends.engine_targets import has_float8_units, no_float8
from deploy.backends.opening import require_devices
from deploy.backends.tensorrt_dialect import MODULES, TITLES
from quietformer.progress import Job
from quietformer.recipe.recipe import Recipe
from quietformer.recipe.sections import EngineSection, Profile
from quietformer.stages.layout import (
    Variant,
    engine,
    engine_profiles,
    float16_graph,
    float16_profiles,
    float16_quantized_graph,
    float_engine,
    float_graph,
    int8_graph,
    made,
    variants,
)
from quietformer.stages.run_data import companions
from quietformer.stages.stage import Run, Stage

_WITHOUT_A_GPU = "tensorrt-rtx"


class BuildEngine(Stage):
    """Parse and build."""

    name = "engine"

    def __init__(self, recipe: Recipe) -> None:
        self._backend = recipe.backend if recipe.runs_engines else _WITHOUT_A_GPU
        self.title = f"{TITLES[self._backend]} engine{'s' if recipe.runs_engines else ''}"
        self.tools = (self._backend,)

    def settings(self, recipe: Recipe) -> dict[str, Any]:
        """The recipe's table, and the backend where engines are run."""
        return _wishes(recipe).model_dump(mode="json") | ({"backend": recipe.backend} if recipe.runs_engines else {})

    def sources(self, recipe: Recipe) -> dict[str, str]:
        """Nothing; but a missing device, or a target that the builder does not know, is refused before a run works."""
        from quietformer.engine_build import check_capabilities

        if recipe.runs_engines:
            require_devices([recipe.backend])
        targets = _targets(recipe)
        check_capabilities(targets or (), backend=self._backend)
        if "fp8" in engine_profiles(recipe):
            _check_float8(targets or [cuda_devices()[0][0].compute_capability])
        return {}

    def inputs(self, recipe: Recipe) -> Sequence[str]:
        """The graphs, and what lies beside them."""
        beside = [name for variant in variants(recipe) for name in companions(recipe, variant)]
        return (*(graph for graph, _, _ in _work(recipe)), *(beside if recipe.runs_engines else ()))

    def outputs(self, recipe: Recipe) -> Sequence[str]:
        """Folders with engine and ``engine.json``."""
        return tuple(folder for _, folder, _ in _work(recipe))

    def reason_to_skip(self, recipe: Recipe) -> str | None:
        """An engine is not asked for, or cannot be built here."""
        if recipe.runs_engines:
            return None
        if recipe.engine is None:
            return "the recipe has no [engine] table"
        if importlib.util.find_spec(MODULES[self._backend]) is None:
            return f"{self._backend} is not installed: pip install 'quietformer[{self._backend}]'"
        return None

    def work(self, run: Run, job: Job) -> str:
        """Build one engine after another, each for every target at once."""
        from quietformer.engine_build import EngineWishes, build_from_texts

        recipe, wishes = run.recipe, _wishes(run.recipe)
        reports = [
            build_from_texts(
                run.path(graph),
                run.path(folder),
                EngineWishes(
                    backend=self._backend,
                    compute_capabilities=_targets(recipe, profile),
                    smallest=wishes.min_shape,
                    usual=wishes.opt_shape,
                    largest=wishes.max_shape,
                ),
                force=True,
                job=job,
            )
            for graph, folder, profile in _work(recipe)
        ]
        told = ", ".join(
            f"{report.precision} {report.engine_bytes / 1e6:.0f} MB for SM {' '.join(report.compute_capabilities)}"
            for report in reports
        )
        return told if recipe.runs_engines else f"{told}; {reports[0].not_done}"


def float_source(recipe: Recipe, variant: Variant) -> str:
    """The graph that a float engine is made from."""
    return float16_graph(variant) if recipe.export.float16 else float_graph(variant)


def _quantized_source(recipe: Recipe, variant: Variant, profile: Profile) -> str:
    in_float16 = profile in float16_profiles(recipe)
    return float16_quantized_graph(variant, profile) if in_float16 else int8_graph(variant, recipe, profile)


def _work(recipe: Recipe) -> list[tuple[str, str, Profile | None]]:
    """Graph, folder and profile of each engine; no profile of a float one."""
    found: list[tuple[str, str, Profile | None]] = []
    for variant in variants(recipe) if recipe.runs_engines else (made(recipe),):
        if recipe.runs_engines:
            found.append((float_source(recipe, variant), float_engine(variant), None))
        found += [
            (_quantized_source(recipe, variant, profile), engine(variant, profile), profile)
            for profile in engine_profiles(recipe)
        ]
    return found


def _wishes(recipe: Recipe) -> EngineSection:
    return recipe.engine if recipe.engine is not None else recipe.default_engine()


def _targets(recipe: Recipe, profile: Profile | None = None) -> Sequence[str] | None:
    """TensorRT builds for the GPU at hand; TensorRT-RTX for it where the engine runs here, else for those that are named; FP8 for those that have it."""
    from quietformer.engine_build import targets_here

    if not recipe.runs_engines:
        named = _wishes(recipe).compute_capabilities
        return named if profile != "fp8" else [target for target in named if has_float8_units(target)]
    return targets_here(recipe.backend)


def _check_float8(targets: Sequence[str]) -> None:
    """Refuse profile ``fp8`` where no target has FP8."""
    if not any(map(has_float8_units, targets)):
        raise ValueError(f"profile 'fp8' of the recipe: {no_float8(targets[0])}")
