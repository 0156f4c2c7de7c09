"""Stage ``bench``: interleaved latency of float and INT8 on both CPU backends."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from deploy.backends.opening import open_backend
from deploy.files import write_atomically
from deploy.measuring.bench import Candidate, bench
from quietformer.progress import Job
from quietformer.recipe.recipe import Recipe
from quietformer.stages.layout import LATENCY, baseline, float_graph, int8_graph, made
from quietformer.stages.run_data import companions, held_out_data, held_out_inputs
from quietformer.stages.stage import Run, Stage

_INT8_CANDIDATES = (("tensorrt", "openvino"), ("ort", "onnxruntime"))
"""Profile and the backend it is fast on."""


class MeasureLatency(Stage):
    """The float baseline on both backends against the made model in INT8."""

    name = "bench"
    title = "latency, float and INT8 in turns"
    tools = ("onnxruntime", "openvino")

    def settings(self, recipe: Recipe) -> dict[str, Any]:
        """The recipe's table."""
        return recipe.bench.model_dump(mode="json")

    def inputs(self, recipe: Recipe) -> Sequence[str]:
        """The graphs that are measured, and what feeds them."""
        graphs = [int8_graph(made(recipe), recipe, profile) for profile, _ in _candidates(recipe)]
        return (float_graph(baseline(recipe)), *companions(recipe, baseline(recipe)), *graphs, *held_out_inputs(recipe))

    def outputs(self, recipe: Recipe) -> Sequence[str]:
        """One JSON file, a report per shape."""
        return (LATENCY,)

    def work(self, run: Run, job: Job) -> str:
        """Open all candidates and measure them in turns."""
        from quietformer.graph_data.graph_inputs import graph_inputs

        recipe = run.recipe
        original = run.path(float_graph(baseline(recipe)))
        inputs = graph_inputs(original)
        shapes = recipe.bench.shapes or (inputs.usual_shape,)
        opened = [
            ("float on onnxruntime", "onnxruntime", original),
            ("float on openvino", "openvino", original),
        ]
        opened += [
            (f"INT8 on {backend}", backend, run.path(int8_graph(made(recipe), recipe, profile)))
            for profile, backend in _candidates(recipe)
        ]
        reports = []
        with ExitStack() as stack:
            backends = [stack.enter_context(open_backend(backend, graph)) for _, backend, graph in opened]
            candidates = [
                Candidate(name=name, backend=backend, precision=backend.precision)
                for (name, _, _), backend in zip(opened, backends, strict=True)
            ]
            for shape in shapes:
                feeds = inputs.full_batch(held_out_data(run), shape)
                for backend in backends:
                    backend.fix_shapes(feeds)
                reports.append(
                    bench(
                        candidates,
                        feeds,
                        repeats=recipe.bench.repeats,
                        seconds=recipe.bench.seconds,
                        progress=job.tell,
                    )
                )
        write_atomically(run.path(LATENCY), json.dumps([report.to_dict() for report in reports]) + "\n")
        ratios = [timing.speed_up.ratio for timing in reports[0].timings if timing.speed_up]
        return f"fastest {max(ratios):.1f}x over {reports[0].baseline} at {shapes[0]}"


def _candidates(recipe: Recipe) -> list[tuple[str, str]]:
    return [(profile, backend) for profile, backend in _INT8_CANDIDATES if profile in recipe.quantize.profiles]
