"""What an explanation says, as plain values."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from deploy.data.example_draw import ExamplesUsed
from deploy.graphs.site_choice import literal_pattern
from deploy.tasks.score_gate import Gate, loss_against

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class ExplainedSite:
    """One site; signal to noise in dB, None where nothing is changed."""

    name: str
    kind: str
    is_weight: bool
    low: float
    high: float
    """Ends of the range that the integers are spread over."""
    step: float
    """Scale; the largest one of a weight with several."""
    saturated: float
    """Share of values beyond the range."""
    zeroed: float
    """Share of values that are not 0 and become 0."""
    sqnr: float | None
    """Of the tensor itself."""
    output_sqnr_alone: float | None
    """Of the graph's outputs with only this site in integers."""
    output_sqnr_without: float | None
    """Of the graph's outputs with only this site in float."""
    score_without: float | None = None
    """Of the task with only this site in float (with what an exclusion of it takes along); None where it was not evaluated."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeRows:
    """The examples that sites are screened on: rows of a task's batches."""

    batches: tuple[int, ...]
    """Numbers of the batches, of which the task has ``available``."""
    rows: tuple[tuple[int, ...], ...]
    """Rows of each, drawn at random."""
    available: int
    seed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchStep:
    """One evaluation of the search."""

    float_sites: tuple[str, ...]
    score: float
    drop: float
    """Loss against the float model; positive is worse."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """Everything that ``quietformer explain`` found. Scores are simulated: integers rounded in float, as ONNX defines Q/DQ."""

    graph_sha256: str
    profile: str
    bits: str
    weights: str
    method: str
    task: str
    metric: str
    higher_is_better: bool
    num_examples: int
    data: str
    examples: ExamplesUsed | None
    """Which examples of the data were evaluated."""
    probe: ProbeRows
    """Which of them the sites were screened on."""
    float_score: float
    quantized_score: float
    output_sqnr: float | None
    """Of the graph's outputs with all sites in integers."""
    sites: tuple[ExplainedSite, ...]
    """Most harmful first: by the signal to noise that the outputs have without them."""
    max_drop: float | None
    steps: tuple[SearchStep, ...]
    """Of the search, in order; empty where none was asked for or needed."""
    float_sites: tuple[str, ...] | None
    """The smallest set that was found to meet ``max_drop`` or ``min_score``; None where none was, or no search was asked for."""
    float_sites_score: float | None
    min_score: float | None = None
    taken_along: tuple[str, ...] = ()
    """Further sites that excluding ``float_sites`` leaves in float: the other side of a layer that reads no integers then."""
    evidence: str = "simulated"
    schema_version: int = SCHEMA_VERSION

    @property
    def gate(self) -> Gate:
        """What the search had to reach."""
        return Gate(max_drop=self.max_drop, min_score=self.min_score)

    def drop(self, score: float) -> float:
        """Loss of a score against the float model; positive is worse."""
        return loss_against(self.float_score, score, higher_is_better=self.higher_is_better)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; an infinite ratio becomes a text."""
        return {name: _plain(value) for name, value in asdict(self).items()}

    def exclusion_list(self) -> str:
        """The float sites as a file for ``quietformer quantize --exclude``.

        Raises:
            ValueError: no set was found, or it is empty: nothing is to be excluded.
        """
        if not self.float_sites:
            raise ValueError("there is no set of float sites to write")
        chosen = "" if self.examples is None else f", {self.examples.in_words()}"
        head = (
            f"# {len(self.float_sites)} of {len(self.sites)} sites of profile {self.profile} in float: {self.metric} "
            f"{_score(self.float_sites_score)} on {self.data}{chosen} (float {_score(self.float_score)}, all in integers "
            f"{_score(self.quantized_score)}), simulated\n"
        )
        return head + "".join(f"{literal_pattern(name)}\n" for name in self.float_sites)


def _score(value: float | None) -> str:
    return "exact" if value == math.inf else f"{value:.4f}"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
