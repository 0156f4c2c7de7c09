"""What stage ``compare`` judges: graphs on CPU backends, or the engines of a run that builds them for the GPU at hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from deploy.backends.base import Backend
from deploy.backends.opening import open_backend
from deploy.backends.task_runner import open_for_tasks
from deploy.calibration.calibration_cache import CalibrationCache
from deploy.graphs.graph_structure import read_outline
from deploy.measuring.compare import Contender
from deploy.quantization.site_selection import RecordedChoice
from quietformer.recipe.recipe import Recipe
from quietformer.recipe.sections import Profile
from quietformer.stages.layout import (
    Variant,
    calibration_cache,
    engine,
    engine_profiles,
    float_engine,
    float_graph,
    int8_graph,
    variants,
)
from quietformer.stages.quantize_as_told import quantize_as_told
from quietformer.stages.run_data import reads_images
from quietformer.stages.stage import Run

_BACKENDS_OF_PROFILE: dict[Profile, tuple[str, ...]] = {
    "tensorrt": ("openvino", "onnxruntime"),
    "paper": ("openvino", "onnxruntime"),
    "ort": ("onnxruntime",),
    "fp8": ("onnxruntime",),
}
"""Where each profile's graphs run in integers (those of ``fp8`` in float, as they are written); the further calibration subsets run on the first one."""
_WIDTHS: dict[str, str] = {"fp8": "FP8"}
"""Of profiles whose 8 bits are no integers."""


def contenders(run: Run) -> list[Contender]:
    """In the order of a report: the float original (or the one model that there is) first."""
    return _engine_contenders(run) if run.recipe.runs_engines else _graph_contenders(run)


def _engine_contenders(run: Run) -> list[Contender]:
    """Engines have one calibration subset, that of the graph that they were built from."""
    backend = run.recipe.backend
    floats = "float16" if run.recipe.export.float16 else "float32"
    forms: list[tuple[Profile | None, str]] = [(None, floats)]
    forms += [(profile, _WIDTHS.get(profile, "W8A8")) for profile in engine_profiles(run.recipe)]
    return [
        Contender(
            arm=variant,
            backend=backend,
            precision=precision,
            profile=profile,
            artifacts=(partial(open_for_tasks, backend, run.path(_folder(variant, profile))),),
            gated=False,
        )
        for profile, precision in forms
        for variant in variants(run.recipe)
    ]


def _folder(variant: Variant, profile: Profile | None) -> str:
    return float_engine(variant) if profile is None else engine(variant, profile)


def _graph_contenders(run: Run) -> list[Contender]:
    recipe = run.recipe
    judged = [
        Contender(
            arm=variant,
            backend="onnxruntime",
            precision="float32",
            artifacts=(partial(open_backend, "onnxruntime", run.path(float_graph(variant))),),
            gated=False,
        )
        for variant in variants(recipe)
    ]
    further_seeds = recipe.calibrate.seeds[1:]
    for variant in variants(recipe):
        for profile in recipe.quantize.profiles:
            for place, backend in enumerate(_backends_of(profile, recipe)):
                served = partial(open_backend, backend, run.path(int8_graph(variant, recipe, profile)))
                subsets = [
                    partial(_open_subset, run, variant, profile, backend, seed) for seed in further_seeds if place == 0
                ]
                judged.append(
                    Contender(
                        arm=variant,
                        backend=backend,
                        precision=_WIDTHS.get(profile, recipe.quantize.bits),
                        profile=profile,
                        artifacts=(served, *subsets),
                        gated=False,
                    )
                )
    return judged


def _backends_of(profile: Profile, recipe: Recipe) -> tuple[str, ...]:
    """OpenVINO 2026.4 drops the bias of a convolution whose output is quantized, as ``paper`` quantizes that of the patches."""
    backends = _BACKENDS_OF_PROFILE[profile]
    return ("onnxruntime",) if reads_images(recipe) and profile == "paper" else backends


@contextmanager
def _open_subset(run: Run, variant: Variant, profile: str, backend: str, seed: int) -> Iterator[Backend]:
    """A graph from another subset's ranges, which lives only while it is evaluated."""
    cache = CalibrationCache.load(run.path(calibration_cache(variant, run.recipe, seed)))
    with TemporaryDirectory(dir=run.folder, prefix=".subset.") as scratch:
        graph = Path(scratch) / "model.int8.onnx"
        # The sites of the graph that is served, whatever set its switches.
        served = RecordedChoice.read(read_outline(run.path(int8_graph(variant, run.recipe, profile))))
        source = run.path(float_graph(variant))
        quantize_as_told(run.recipe, source, cache, graph, profile=profile, choice=served.choice)
        with open_backend(backend, graph) as opened:
            yield opened
