"""Why a graph loses accuracy in integers: every site seen alone, and the few that must stay float.

One simulated pass over a task for the score, a probe of a few examples for all sites, further passes only for the sites that
the probe finds most harmful and for the search.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx

from deploy.calibration.calibration_cache import CalibrationCache
from deploy.calibration.quant_params import QuantParams
from deploy.data.example_draw import ExamplesUsed
from deploy.explanation.explanation import ExplainedSite, Explanation, SearchStep
from deploy.explanation.float_search import search_float_sites
from deploy.explanation.literal_session import literal_session
from deploy.explanation.probe import Probe, open_probe, probe_feeds, tensor_figures
from deploy.explanation.site_figures import RoundingFigures, decibels
from deploy.explanation.switched_graph import Switchable, constants_of, switchables
from deploy.graphs.float16 import refuse_float16
from deploy.graphs.graph_structure import load_graph
from deploy.graphs.model_hash import model_sha256
from deploy.graphs.profiles import Profile, profile_named
from deploy.graphs.site_choice import SiteChoice, literal_pattern
from deploy.graphs.sites import SiteList
from deploy.quantization.bits import Bits
from deploy.quantization.quantize import quantize_model
from deploy.quantization.site_selection import Place, exclude_sites, select_sites
from deploy.quantization.stored_weights import WeightRanges
from deploy.tasks.task import Task


@dataclass(frozen=True, kw_only=True, slots=True)
class ExplainSettings:
    """How much is evaluated."""

    evaluated: int = 8
    """Sites, most harmful first, for which the whole task is evaluated with only them in float."""
    max_drop: float | None = None
    """Largest loss of the search, in the task's metric; None searches nothing."""
    largest: int = 32
    """Sites in float at most."""
    pool: int = 24
    """Candidates that are screened for every further float site."""
    threads: int | None = None
    """Of ONNX Runtime."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExplainProgress:
    """Who is told what."""

    tell: Callable[[str], None] = lambda line: None
    advance: Callable[[int, int], None] = lambda done, total: None


def explain(
    model_path: Path,
    cache: CalibrationCache,
    task: Task,
    *,
    profile: str = "tensorrt",
    weights: WeightRanges = "minmax",
    choice: SiteChoice | None = None,
    bits: Bits | None = None,
    data: str = "",
    examples: ExamplesUsed | None = None,
    settings: ExplainSettings | None = None,
    progress: ExplainProgress | None = None,
) -> Explanation:
    """Rank the sites of a float graph; the same inputs give the same result.

    Args:
        model_path: float32 graph.
        cache: ranges of its tensors.
        task: what accuracy is.
        profile: whose sites.
        weights: how the weights' ranges are chosen.
        choice: what is changed about the sites; the search goes on from there.
        bits: widths of the integers.
        data: what the task evaluates on, in words.
        examples: which examples of it.
        settings: how much is evaluated.
        progress: told what is done.

    Raises:
        FileNotFoundError: no such graph.
        ValueError: a cache of another graph, a float16 or quantized graph, or what ``quantize`` refuses.
        ImportError: ONNX Runtime is not installed.
    """
    settings, progress = settings or ExplainSettings(), progress or ExplainProgress()
    if settings.max_drop is not None and not (math.isfinite(settings.max_drop) and settings.max_drop >= 0):
        raise ValueError(f"max_drop is {settings.max_drop}; expected a finite loss of at least 0, in {task.metric}")
    cache.check(model_path)
    float_model = load_graph(model_path)
    refuse_float16(float_model, name=str(model_path))
    work = _Work(
        path=model_path,
        cache=cache,
        task=task,
        profile=profile_named(profile),
        weights=weights,
        choice=choice or SiteChoice(),
        bits=bits or Bits(),
        settings=settings,
        progress=progress,
    )
    selection = select_sites(float_model, work.profile, work.choice)
    sites = switchables(selection.sites)
    progress.tell(f"{task.name}: float")
    with literal_session(float_model, threads=settings.threads) as infer:
        rows_of_probe, batches, float_score = probe_feeds(task, infer)
    progress.tell(f"{task.name}: all {len(sites)} sites in integers")
    quantized_score = work.score(())
    quantized = work.quantized(())
    figures = _figures(work, float_model, quantized, sites, batches)
    with open_probe(model_path, float_model, quantized, sites, batches, threads=settings.threads) as probe:
        del float_model, quantized
        rows = _screened(work, sites, figures, probe)
        everything = probe.noise(probe.places)
        result = Explanation(
            graph_sha256=model_sha256(model_path),
            profile=profile,
            bits=str(work.bits),
            weights=weights,
            method=cache.method,
            task=task.name,
            metric=task.metric,
            higher_is_better=task.higher_is_better,
            num_examples=task.num_examples,
            data=data,
            examples=examples,
            probe=rows_of_probe,
            float_score=float_score,
            quantized_score=quantized_score,
            output_sqnr=decibels(probe.signal, everything),
            sites=rows,
            max_drop=settings.max_drop,
            steps=(),
            float_sites=None,
            float_sites_score=None,
        )
        result = replace(result, sites=_evaluated(work, result))
        return result if settings.max_drop is None else _searched(work, result, selection.sites, sites, probe)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Work:
    """What stays the same from one evaluation to the next."""

    path: Path
    cache: CalibrationCache
    task: Task
    profile: Profile
    weights: WeightRanges
    choice: SiteChoice
    bits: Bits
    settings: ExplainSettings
    progress: ExplainProgress

    def quantized(self, float_sites: Sequence[str]) -> onnx.ModelProto:
        """The graph that ``quantize --exclude`` writes for these sites."""
        choice = replace(self.choice, exclude=(*self.choice.exclude, *map(literal_pattern, float_sites)))
        model, _ = quantize_model(
            load_graph(self.path), self.cache, profile=self.profile, weights=self.weights, choice=choice, bits=self.bits
        )
        return model

    def score(self, float_sites: Sequence[str]) -> float:
        """The task's score of it, simulated."""
        with literal_session(self.quantized(float_sites), threads=self.settings.threads) as infer:
            return self.task.evaluate(infer).score


def _figures(
    work: _Work,
    float_model: onnx.ModelProto,
    quantized: onnx.ModelProto,
    sites: Sequence[Switchable],
    batches: Sequence[Mapping[str, np.ndarray]],
) -> dict[str, tuple[RoundingFigures, tuple[float, float, float]]]:
    """Figures, and the range's ends and step, by site."""
    params = {
        site.measured: work.cache.range_of(site.measured, bits=work.bits.activations, symmetric=work.profile.symmetric)
        for site in sites
        if not site.is_weight
    }
    work.progress.tell(f"values of {len(params)} tensors")
    seen = tensor_figures(work.path, params, [dict(feeds) for feeds in batches], threads=work.settings.threads)
    found = {site.name: (seen[site.measured], _ends(params[site.measured])) for site in sites if not site.is_weight}
    stored = {tensor.name: tensor for tensor in quantized.graph.initializer}
    for name, exact in constants_of(float_model, sites).items():
        integers, scale = (onnx.numpy_helper.to_array(stored[f"{name}/{part}"]) for part in ("quantized", "scale"))
        axes = tuple(axis for axis in range(exact.ndim) if scale.ndim and exact.shape[axis] != scale.size)
        rounded = integers.astype(np.float32) * (np.expand_dims(scale, axes) if scale.ndim else scale)
        figures = RoundingFigures()
        figures.add_pair(exact, rounded)
        step = float(scale.max())
        bound = step * (2 ** (work.bits.weights - 1) - 1)
        found[name] = figures, (-bound, bound, step)
    return found


def _ends(params: QuantParams) -> tuple[float, float, float]:
    return (
        (params.qmin - params.zero_point) * params.scale,
        (params.qmax - params.zero_point) * params.scale,
        params.scale,
    )


def _screened(
    work: _Work,
    sites: Sequence[Switchable],
    figures: Mapping[str, tuple[RoundingFigures, tuple[float, float, float]]],
    probe: Probe,
) -> tuple[ExplainedSite, ...]:
    """Every site alone and every site left out, most harmful first."""
    rows: list[tuple[float, ExplainedSite]] = []
    for done, site in enumerate(sites, start=1):
        seen, (low, high, step) = figures[site.name]
        alone = probe.noise(site.places)
        without = probe.noise(probe.places.difference(site.places))
        row = ExplainedSite(
            name=site.name,
            kind=site.kind,
            is_weight=site.is_weight,
            low=low,
            high=high,
            step=step,
            saturated=seen.saturated_share,
            zeroed=seen.zeroed_share,
            sqnr=decibels(seen.signal, seen.noise),
            output_sqnr_alone=decibels(probe.signal, alone),
            output_sqnr_without=decibels(probe.signal, without),
        )
        rows.append((without, row))
        work.progress.advance(done, len(sites))
    return tuple(row for _, row in sorted(rows, key=lambda entry: entry[0]))


def _evaluated(work: _Work, result: Explanation) -> tuple[ExplainedSite, ...]:
    """The sites, the most harmful ones with the task's score without them."""
    count = min(work.settings.evaluated, len(result.sites))
    rows = list(result.sites)
    for number in range(count):
        work.progress.tell(f"{work.task.name}: without site {number + 1} of {count}, {rows[number].name}")
        rows[number] = replace(rows[number], score_without=work.score((rows[number].name,)))
    return tuple(rows)


def _searched(
    work: _Work, result: Explanation, all_sites: SiteList, sites: Sequence[Switchable], probe: Probe
) -> Explanation:
    max_drop = work.settings.max_drop
    assert max_drop is not None
    drop = result.drop(result.quantized_score)
    if math.isfinite(drop) and drop <= max_drop:
        return replace(result, float_sites=(), float_sites_score=result.quantized_score)
    policy = work.choice.applied_to(work.profile)
    known: dict[tuple[str, ...], float] = {
        (row.name,): row.score_without for row in result.sites if row.score_without is not None
    }

    def evaluate(float_sites: tuple[str, ...]) -> SearchStep:
        score = known.get(float_sites)
        if score is None:
            score = work.score(float_sites)
        return SearchStep(float_sites=float_sites, score=score, drop=result.drop(score))

    def noise(float_sites: tuple[str, ...]) -> float:
        rest = exclude_sites(all_sites, [literal_pattern(name) for name in float_sites], policy)
        return probe.noise(_places(switchables(rest)))

    found = search_float_sites(
        [row.name for row in result.sites],
        noise=noise,
        evaluate=evaluate,
        max_drop=max_drop,
        largest=work.settings.largest,
        pool=work.settings.pool,
        tell=work.progress.tell,
    )
    if found.found is None:
        return replace(result, steps=found.steps)
    return replace(result, steps=found.steps, float_sites=found.found.float_sites, float_sites_score=found.found.score)


def _places(sites: Sequence[Switchable]) -> Collection[Place]:
    return {place for site in sites for place in site.places}
