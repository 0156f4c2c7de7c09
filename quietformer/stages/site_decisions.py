"""Which sites a run quantizes: the recipe's choice, with the switches that it leaves to timing decided where the run measures."""

from __future__ import annotations

from typing import Any

from deploy.calibration.calibration_cache import CalibrationCache
from deploy.graphs.site_choice import SiteChoice
from deploy.quantization.switch_decision import SwitchDecision
from quietformer.progress import Job, say
from quietformer.recipe.recipe import Recipe
from quietformer.recipe.sections import Profile
from quietformer.stages.layout import ENGINE_PROFILES, Variant, float16_graph, float16_profiles, float_graph
from quietformer.stages.quantize_as_told import quantize_as_told
from quietformer.stages.stage import Run

_CPU_BACKENDS: dict[Profile, str] = {
    "tensorrt": "openvino",
    "ort": "onnxruntime",
    "paper": "onnxruntime",
    "fp8": "onnxruntime",
}
"""By profile: what its integers are fast on, where a run has no GPU."""


def timing_backend(recipe: Recipe, profile: Profile) -> str:
    """Where combinations of a profile are timed."""
    return recipe.backend if recipe.runs_engines and profile in ENGINE_PROFILES else _CPU_BACKENDS[profile]


def check_switches(recipe: Recipe) -> None:
    """Refuse switches that cannot be timed here, before a run works.

    Raises:
        ValueError: names the switch.
    """
    from quietformer.switch_timing import check_auto

    for profile in recipe.quantize.profiles:
        check_auto(recipe.quantize.choice(profile), profile=profile, backend=timing_backend(recipe, profile))


def timing_settings(recipe: Recipe) -> dict[str, Any]:
    """What the recipe says of timing, as plain values; nothing where no switch is left to it."""
    open_profiles = [name for name in recipe.quantize.profiles if recipe.quantize.choice(name).open_switches]
    if not open_profiles:
        return {}
    shapes = recipe.bench.model_dump(mode="json")
    return {"timing": shapes | {"backends": {name: timing_backend(recipe, name) for name in open_profiles}}}


def decided_sites(
    run: Run, variant: Variant, cache: CalibrationCache, profile: Profile, *, job: Job
) -> tuple[SiteChoice, SwitchDecision | None]:
    """The choice of sites of a profile without open switches, and what decided them; it serves the float16 form as well."""
    from quietformer.engine_build import EngineWishes
    from quietformer.switch_timing import TimedOn, decide_switches

    recipe = run.recipe
    choice = recipe.quantize.choice(profile)
    if not choice.open_switches:
        return choice, None
    on_engines = timing_backend(recipe, profile) == recipe.backend
    source = run.path(
        float16_graph(variant) if on_engines and profile in float16_profiles(recipe) else float_graph(variant)
    )
    engine = recipe.engine if recipe.engine is not None else recipe.default_engine()
    shape = recipe.bench.shapes[0] if recipe.bench.shapes else None
    decision = decide_switches(
        source,
        choice,
        lambda tried, path: quantize_as_told(recipe, source, cache, path, profile=profile, choice=tried),
        TimedOn(
            engines=EngineWishes(
                backend=timing_backend(recipe, profile),
                smallest=engine.min_shape,
                usual=shape if not on_engines else shape or engine.opt_shape,
                largest=engine.max_shape,
            ),
            seconds=recipe.bench.seconds,
            repeats=recipe.bench.repeats,
        ),
        scratch=run.folder,
        job=job,
    )
    say(f"  profile {profile}: {decision.summary()}")
    return choice.decided(decision.switches), decision
