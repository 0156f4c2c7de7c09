"""Why a graph loses accuracy in integers: every site seen alone, and the few that must stay float.

One simulated pass over a task for the score, a probe of a few examples for all sites, further passes only for the sites that
the probe finds most harmful and for the search.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from deploy.calibration.calibration_cache import CalibrationCache
from deploy.data.example_draw import ExamplesUsed
from deploy.explanation.explanation import ExplainedSite, Explanation, SearchStep
from deploy.explanation.float_search import search_float_sites
from deploy.explanation.literal_session import literal_session
from deploy.explanation.probe import Probe, open_probe, probe_feeds
from deploy.explanation.site_figures import decibels
from deploy.explanation.site_rounding import SiteRounding, rounding_of_sites
from deploy.explanation.switched_graph import Switchable, switchables
from deploy.explanation.trials import Trials
from deploy.graphs.float16 import refuse_float16
from deploy.graphs.graph_refusal import refuse_quantized
from deploy.graphs.graph_structure import read_outline
from deploy.graphs.model_hash import model_sha256
from deploy.graphs.profiles import profile_named
from deploy.graphs.site_choice import SiteChoice, literal_pattern
from deploy.graphs.sites import SiteList
from deploy.graphs.watched_graph import WatchedGraph
from deploy.quantization.bits import Bits
from deploy.quantization.site_selection import Place, exclude_sites, select_sites
from deploy.quantization.stored_weights import WeightRanges
from deploy.tasks.score_gate import Gate
from deploy.tasks.task import Task


@dataclass(frozen=True, kw_only=True, slots=True)
class ExplainSettings:
    """How much is evaluated."""

    evaluated: int = 8
    """Sites, most harmful first, for which the whole task is evaluated with only them in float."""
    max_drop: float | None = None
    """Largest loss of the search, in the task's metric; without it and ``min_score`` nothing is searched."""
    min_score: float | None = None
    """Lowest score of the search, in its place."""
    largest: int = 32
    """Sites in float at most."""
    pool: int = 24
    """Candidates that are screened for every further float site."""
    threads: int | None = None
    """Of ONNX Runtime."""

    @property
    def gate(self) -> Gate:
        """What the search has to reach."""
        return Gate(max_drop=self.max_drop, min_score=self.min_score)


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
    settings.gate.check(task)
    float_model = read_outline(model_path)
    refuse_quantized(float_model, name=str(model_path))
    refuse_float16(float_model, name=str(model_path))
    cache.check(model_path)
    trials = Trials(
        path=model_path,
        cache=cache,
        task=task,
        profile=profile_named(profile),
        weights=weights,
        choice=choice or SiteChoice(),
        bits=bits or Bits(),
        threads=settings.threads,
    )
    selection = select_sites(float_model, trials.profile, trials.choice)
    sites = switchables(selection.sites)
    progress.tell(f"{task.name}: float")
    with literal_session(float_model, source=model_path, threads=settings.threads) as infer:
        rows_of_probe, batches, float_score = probe_feeds(task, infer, fixed_rows=WatchedGraph(model_path).fixed_rows)
    settings.gate.check_baseline(float_score, task)
    progress.tell(f"{task.name}: all {len(sites)} sites in integers")
    quantized_score = trials.score()
    quantized = trials.quantized()
    progress.tell(f"values of {len(sites)} sites")
    rounding = rounding_of_sites(trials, float_model, quantized, sites, batches)
    with open_probe(model_path, float_model, quantized, sites, batches, threads=settings.threads) as probe:
        del float_model, quantized
        rows = _screened(sites, rounding, probe, progress)
        everything = probe.noise(probe.places)
        result = Explanation(
            graph_sha256=model_sha256(model_path),
            profile=profile,
            bits=str(trials.bits),
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
            min_score=settings.min_score,
            steps=(),
            float_sites=None,
            float_sites_score=None,
        )
        result = replace(result, sites=_evaluated(trials, result, settings, progress))
        if settings.gate.is_open:
            return result
        return _searched(trials, result, selection.sites, probe, settings=settings, progress=progress)


def _screened(
    sites: Sequence[Switchable], rounding: Mapping[str, SiteRounding], probe: Probe, progress: ExplainProgress
) -> tuple[ExplainedSite, ...]:
    """Every site alone and every site left out, most harmful first."""
    rows: list[tuple[float, ExplainedSite]] = []
    for done, site in enumerate(sites, start=1):
        own = rounding[site.name]
        alone = probe.noise(site.places)
        without = probe.noise(probe.places.difference(site.places))
        row = ExplainedSite(
            name=site.name,
            kind=site.kind,
            is_weight=site.is_weight,
            low=own.low,
            high=own.high,
            step=own.step,
            saturated=own.figures.saturated_share,
            zeroed=own.figures.zeroed_share,
            sqnr=decibels(own.figures.signal, own.figures.noise),
            output_sqnr_alone=decibels(probe.signal, alone),
            output_sqnr_without=decibels(probe.signal, without),
        )
        rows.append((without, row))
        progress.advance(done, len(sites))
    return tuple(row for _, row in sorted(rows, key=lambda entry: entry[0]))


def _evaluated(
    trials: Trials, result: Explanation, settings: ExplainSettings, progress: ExplainProgress
) -> tuple[ExplainedSite, ...]:
    """The sites, the most harmful ones with the task's score without them."""
    count = min(settings.evaluated, len(result.sites))
    rows = list(result.sites)
    for number in range(count):
        progress.tell(f"{trials.task.name}: without site {number + 1} of {count}, {rows[number].name}")
        rows[number] = replace(rows[number], score_without=trials.score((rows[number].name,)))
    return tuple(rows)


def _searched(
    trials: Trials,
    result: Explanation,
    all_sites: SiteList,
    probe: Probe,
    *,
    settings: ExplainSettings,
    progress: ExplainProgress,
) -> Explanation:
    gate = settings.gate
    if gate.passes(result.quantized_score, result.drop(result.quantized_score)):
        return replace(result, float_sites=(), float_sites_score=result.quantized_score)
    policy = trials.choice.applied_to(trials.profile)
    known: dict[tuple[str, ...], float] = {
        (row.name,): row.score_without for row in result.sites if row.score_without is not None
    }

    def evaluate(float_sites: tuple[str, ...]) -> SearchStep:
        score = known.get(float_sites)
        if score is None:
            score = trials.score(float_sites)
        return SearchStep(float_sites=float_sites, score=score, drop=result.drop(score))

    def left_in_integers(float_sites: tuple[str, ...]) -> list[Switchable]:
        return switchables(exclude_sites(all_sites, [literal_pattern(name) for name in float_sites], policy))

    def noise(float_sites: tuple[str, ...]) -> float:
        return probe.noise(_places(left_in_integers(float_sites)))

    found = search_float_sites(
        [row.name for row in result.sites],
        noise=noise,
        evaluate=evaluate,
        gate=gate,
        largest=settings.largest,
        pool=settings.pool,
        tell=progress.tell,
    )
    if found.found is None:
        return replace(result, steps=found.steps)
    chosen = found.found.float_sites
    integers = {site.name for site in left_in_integers(chosen)}
    taken_along = tuple(row.name for row in result.sites if row.name not in integers and row.name not in chosen)
    return replace(
        result,
        steps=found.steps,
        float_sites=chosen,
        float_sites_score=found.found.score,
        taken_along=taken_along,
    )


def _places(sites: Sequence[Switchable]) -> Collection[Place]:
    return {place for site in sites for place in site.places}
