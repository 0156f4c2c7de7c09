"""Stage ``bench``: interleaved latency of float and INT8, on both CPU backends or on engines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from deploy.backends.opening import require_devices
from deploy.files import write_atomically
from quietformer.progress import Job
from quietformer.recipe.recipe import Recipe
from quietformer.stages.layout import (
    LATENCY,
    baseline,
    engine,
    engine_profiles,
    float_engine,
    float_graph,
    int8_graph,
    made,
    variants,
)
from quietformer.stages.run_data import companions, held_out_data, held_out_inputs
from quietformer.stages.stage import Run, Stage

_INT8_CANDIDATES = (("tensorrt", "openvino"), ("ort", "onnxruntime"))
"""Profile and the backend it is fast on."""


class MeasureLatency(Stage):
    """The float baseline against the made model in 8 bits."""

    name = "bench"
    title = "latency, float and INT8 in turns"

    def __init__(self, recipe: Recipe) -> None:
        self.tools = (recipe.backend,) if recipe.runs_engines else ("onnxruntime", "openvino")

    def settings(self, recipe: Recipe) -> dict[str, Any]:
        """The recipe's table, and the backend where it is one of engines."""
        return recipe.bench.model_dump(mode="json") | ({"backend": recipe.backend} if recipe.runs_engines else {})

    def sources(self, recipe: Recipe) -> dict[str, str]:
        """Nothing; but a missing device is told before a run works."""
        require_devices([recipe.backend])
        return {}

    def inputs(self, recipe: Recipe) -> Sequence[str]:
        """What is measured, and what feeds it."""
        parts = [artifact for _, _, artifact in _parts(recipe)]
        beside = companions(recipe, baseline(recipe))
        return (*dict.fromkeys([float_graph(baseline(recipe)), *beside, *parts, *held_out_inputs(recipe)]),)

    def outputs(self, recipe: Recipe) -> Sequence[str]:
        """One JSON file, a report per shape, and of engines per mode."""
        return (LATENCY,)

    def work(self, run: Run, job: Job) -> str:
        """Open all candidates and measure them in turns."""
        from quietformer.graph_data.graph_inputs import graph_inputs
        from quietformer.latency_measurement import Measured, measure_latency

        recipe = run.recipe
        inputs = graph_inputs(run.path(float_graph(baseline(recipe))))
        shapes = recipe.bench.shapes or (inputs.usual_shape,)
        reports = measure_latency(
            [Measured(name=name, backend=on, artifact=run.path(artifact)) for name, on, artifact in _parts(recipe)],
            [inputs.full_batch(held_out_data(run), shape) for shape in shapes],
            repeats=recipe.bench.repeats,
            seconds=recipe.bench.seconds,
            job=job,
        )
        write_atomically(run.path(LATENCY), json.dumps([report.to_dict() for report in reports]) + "\n")
        ratios = [timing.speed_up.ratio for timing in reports[0].timings if timing.speed_up]
        return f"fastest {max(ratios):.1f}x over {reports[0].baseline} at {reports[0].title}"


def _parts(recipe: Recipe) -> list[tuple[str, str, str]]:
    """Name, backend and artifact of each candidate; the baseline first."""
    if recipe.runs_engines:
        floats = [(f"{variant} in float", recipe.backend, float_engine(variant)) for variant in variants(recipe)]
        eights = [
            (
                f"{made(recipe)} in {'FP8' if profile == 'fp8' else 'INT8'}",
                recipe.backend,
                engine(made(recipe), profile),
            )
            for profile in engine_profiles(recipe)
        ]
        return [*floats, *eights]
    original = float_graph(baseline(recipe))
    return [
        ("float on onnxruntime", "onnxruntime", original),
        ("float on openvino", "openvino", original),
        *(
            (f"INT8 on {backend}", backend, int8_graph(made(recipe), recipe, profile))
            for profile, backend in _INT8_CANDIDATES
            if profile in recipe.quantize.profiles
        ),
    ]
