"""A greedy search for a small set of sites that must stay float.

Forward: again and again the site is added without which the outputs of the probe are closest to the float model's; the task is
evaluated at set sizes 1, 2, 3, 4, 6, 8, 12, ... and then between the last size that failed and the first that passed. Backward:
every site is given back, the least important first, and stays in integers where the task still passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from deploy.explanation.explanation import SearchStep
from deploy.tasks.score_gate import Gate, loss_in_words

Evaluate = Callable[[tuple[str, ...]], SearchStep]
"""Score with these sites in float."""
Noise = Callable[[tuple[str, ...]], float]
"""Squared error of the probe's outputs with these sites in float."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchResult:
    """Where a search ended."""

    steps: tuple[SearchStep, ...]
    found: SearchStep | None
    """The evaluation of the smallest set that passes; None where none of the tried ones does."""


def search_float_sites(
    candidates: Sequence[str],
    *,
    noise: Noise,
    evaluate: Evaluate,
    gate: Gate,
    largest: int,
    pool: int,
    tell: Callable[[str], None],
) -> SearchResult:
    """Search.

    Args:
        candidates: sites, most harmful first.
        noise: screens a set, cheaply.
        evaluate: judges a set.
        gate: what passes.
        largest: sites in float at most.
        pool: how many of the best candidates are screened again for every further site.
        tell: told what is tried.
    """
    steps: dict[tuple[str, ...], SearchStep] = {}

    def passes(order: Sequence[str]) -> bool:
        chosen = tuple(sorted(order, key=candidates.index))
        if chosen not in steps:
            steps[chosen] = evaluate(chosen)
            tell(f"{_sites(len(chosen))} in float: {_outcome(steps[chosen], gate)}, {gate.in_words()} passes")
        return gate.passes(steps[chosen].score, steps[chosen].drop)

    order: list[str] = []
    failed, size = 0, 1
    while True:
        size = min(size, largest, len(candidates))
        while len(order) < size:
            rest = [name for name in candidates if name not in order][:pool]
            tell(f"screening {len(rest)} sites beside {len(order)} in float")
            order.append(min(rest, key=lambda name: (noise((*order, name)), rest.index(name))))
        if passes(order):
            break
        failed = size
        if size >= min(largest, len(candidates)):
            return SearchResult(steps=tuple(steps.values()), found=None)
        size = _next_size(size)
    passed = size
    while passed - failed > 1:
        middle = (passed + failed) // 2
        if passes(order[:middle]):
            passed = middle
        else:
            failed = middle
    kept = order[:passed]
    for name in reversed(kept[:-1]):
        fewer = [other for other in kept if other != name]
        if passes(fewer):
            kept = fewer
    return SearchResult(steps=tuple(steps.values()), found=steps[tuple(sorted(kept, key=candidates.index))])


def _sites(number: int) -> str:
    return f"{number} site{'' if number == 1 else 's'}"


def _outcome(step: SearchStep, gate: Gate) -> str:
    return loss_in_words(step.drop) if gate.min_score is None else f"{step.score:.4f}"


def _next_size(size: int) -> int:
    """1, 2, 3, 4, 6, 8, 12, 16, 24, ..."""
    return size + max(1, 1 << (size.bit_length() - 2)) if size > 1 else 2
