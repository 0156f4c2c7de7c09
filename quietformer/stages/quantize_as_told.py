"""Quantizing a graph of a run, for every stage that does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from deploy.calibration.calibration_cache import CalibrationCache
from deploy.graphs.profiles import profile_named
from deploy.graphs.site_choice import SiteChoice
from deploy.quantization.bits import Bits
from deploy.quantization.quantize import QuantizeSummary, quantize
from deploy.quantization.switch_decision import SwitchDecision
from quietformer.recipe.recipe import Recipe


def quantize_as_told(
    recipe: Recipe,
    source: Path,
    cache: CalibrationCache,
    out: Path,
    *,
    profile: str,
    choice: SiteChoice,
    decision: SwitchDecision | None = None,
    progress: Callable[[str], None] | None = None,
) -> QuantizeSummary:
    """Quantize a graph of a run as the recipe's ``[quantize]`` says, replacing ``out``; raises as ``quantize`` does.

    Args:
        recipe: of the run.
        source: float graph.
        cache: its ranges.
        out: graph to write.
        profile: one of the recipe's.
        choice: of its sites, without open switches.
        decision: how switches of the choice were decided.
        progress: told what is happening.
    """
    settings = recipe.quantize
    is_integer = not profile_named(profile).is_float8  # FP8 takes the whole range, whatever is searched for integers
    return quantize(
        source,
        cache,
        out,
        profile=profile,
        weights=settings.weights if is_integer or settings.weights != "mse" else "minmax",
        choice=choice,
        decision=decision,
        bits=Bits.parse(settings.bits),
        reduce_range=settings.reduce_range and is_integer,
        force=True,
        progress=progress,
    )
