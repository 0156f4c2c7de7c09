"""Stage ``engine``: a TensorRT-RTX engine from the made model's ``tensorrt`` graph, in float16 where there is one; needs no GPU."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

from quietformer.progress import Job
from quietformer.recipe.recipe import Recipe
from quietformer.stages.layout import ENGINE, GPU_PROFILE, float16_int8_graph, has_float16_int8, int8_graph, made
from quietformer.stages.stage import Run, Stage

_BACKEND = "tensorrt-rtx"


class BuildEngine(Stage):
    """Parse and build; running the engine is for a machine with a GPU."""

    name = "engine"
    title = "TensorRT-RTX engine"
    tools = ("tensorrt-rtx",)

    def settings(self, recipe: Recipe) -> dict[str, Any]:
        """The recipe's table."""
        return recipe.engine.model_dump(mode="json") if recipe.engine is not None else {}

    def sources(self, recipe: Recipe) -> dict[str, str]:
        """Nothing; but a target that the builder does not know is refused before a run works."""
        from quietformer.engine_build import check_capabilities

        if recipe.engine is not None:
            check_capabilities(recipe.engine.compute_capabilities, backend=_BACKEND)
        return {}

    def inputs(self, recipe: Recipe) -> Sequence[str]:
        """The graph."""
        return (_graph(recipe),)

    def outputs(self, recipe: Recipe) -> Sequence[str]:
        """Engine and ``engine.json``."""
        return (ENGINE,)

    def reason_to_skip(self, recipe: Recipe) -> str | None:
        """An engine is not asked for, or cannot be built here."""
        if recipe.engine is None:
            return "the recipe has no [engine] table"
        if importlib.util.find_spec("tensorrt_rtx") is None:
            return "tensorrt-rtx is not installed: pip install 'quietformer[tensorrt-rtx]'"
        return None

    def work(self, run: Run, job: Job) -> str:
        """Build for every target at once."""
        from quietformer.engine_build import EngineWishes, build_from_texts

        settings = run.recipe.engine
        assert settings is not None
        report = build_from_texts(
            run.path(_graph(run.recipe)),
            run.path(ENGINE),
            EngineWishes(
                backend=_BACKEND,
                compute_capabilities=settings.compute_capabilities,
                smallest=settings.min_shape,
                usual=settings.opt_shape,
                largest=settings.max_shape,
            ),
            force=True,
            job=job,
        )
        targets = ", ".join(report.compute_capabilities)
        return f"{report.engine_bytes / 1e6:.0f} MB for SM {targets}; {report.not_done}"


def _graph(recipe: Recipe) -> str:
    if has_float16_int8(recipe):
        return float16_int8_graph(made(recipe))
    return int8_graph(made(recipe), recipe, GPU_PROFILE)
