"""The sites of one graph after a person's choice: what a profile quantizes, and what is included, less what is excluded.

A pattern that matches nothing is an error, because a silently ignored one is a wrong result.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import onnx

from deploy.graphs.graph_index import Use
from deploy.graphs.profiles import EVERYTHING, Profile
from deploy.graphs.site_choice import SiteChoice, names_match
from deploy.graphs.sites import ActivationSite, FloatLinear, SiteList, find_sites
from deploy.quantization.switch_decision import SwitchDecision

EXCLUDED = "excluded by the user"
"""Reason of a layer that a pattern left in float."""
CHOICE_KEY = "quietformer_sites"
"""Metadata of a quantized graph: a :class:`RecordedChoice` as JSON."""
_NAMES_SHOWN = 5

Place = tuple[str, int]
"""First output of a node, and one of its input slots."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedChoice:
    """What a quantized graph says of the choice it was made with."""

    choice: SiteChoice
    excluded: tuple[str, ...] = ()
    """Names of the linear layers and of the tensors that an exclusion left in float."""
    included: tuple[str, ...] = ()
    """Names of tensors, and of nodes of linear layers, that only an inclusion quantized."""
    decision: SwitchDecision | None = None
    """How the switches that were ``auto`` came to what they are in ``choice``."""

    def write(self, model: onnx.ModelProto) -> None:
        """Add to the metadata of ``model``, in place."""
        value: dict[str, Any] = {
            "choice": self.choice.to_dict(),
            "excluded": self.excluded,
            "included": self.included,
        }
        if self.decision is not None:
            value["decision"] = self.decision.to_dict()
        model.metadata_props.add(key=CHOICE_KEY, value=json.dumps(value, sort_keys=True))

    @classmethod
    def read(cls, model: onnx.ModelProto) -> RecordedChoice:
        """Read back; a graph without it was made with no choice.

        Raises:
            ValueError: what it carries is damaged.
        """
        text = next((entry.value for entry in model.metadata_props if entry.key == CHOICE_KEY), None)
        if text is None:
            return cls(choice=SiteChoice())
        try:
            values: dict[str, Any] = json.loads(text)
            return cls(
                choice=SiteChoice.from_dict(values["choice"]),
                excluded=tuple(values["excluded"]),
                included=tuple(values["included"]),
                decision=SwitchDecision.from_dict(values["decision"]) if "decision" in values else None,
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"the graph has damaged metadata '{CHOICE_KEY}': {error}") from error


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """Sites after a choice."""

    sites: SiteList
    recorded: RecordedChoice


def select_sites(model: onnx.ModelProto, profile: Profile, choice: SiteChoice) -> Selection:
    """Sites of a float graph under a profile and a choice.

    Raises:
        ValueError: a switch is ``auto``, or a pattern matches nothing that it could change.
    """
    policy = choice.applied_to(profile)
    sites = find_sites(model, policy)
    included: list[str] = []
    if choice.include:
        sites, included = _with_included(sites, find_sites(model, EVERYTHING), choice.include)
    result = exclude_sites(sites, choice.exclude, policy)
    excluded = {left.node.name for left in result.float_linears if left.reason == EXCLUDED}
    excluded |= {site.tensor for site in sites.activations} - {site.tensor for site in result.activations}
    return Selection(
        sites=result,
        recorded=RecordedChoice(choice=choice, excluded=tuple(sorted(excluded)), included=tuple(included)),
    )


def exclude_sites(sites: SiteList, patterns: Sequence[str], profile: Profile) -> SiteList:
    """Sites without those that a pattern means.

    Naming a linear layer's node or weight keeps its weight in float, naming a tensor keeps the tensor in float. Where a
    profile quantizes only operands, both sides of a node go together: integers on one side alone cost time and buy nothing.

    Raises:
        ValueError: a pattern matches no node, weight or tensor that the profile quantizes.
    """
    if not patterns:
        return sites
    operands = not profile.every_tensor
    weight_of = {_place(site.reader)[0]: site for site in sites.weights if site.kind == "linear"}
    readers = {use.node.output[0]: use.node for site in sites.activations for use in site.readers} if operands else {}
    things: list[tuple[tuple[str, ...], str]] = [
        *(((site.tensor,), site.kind) for site in sites.activations),
        *(((site.tensor, site.reader.node.name), site.kind) for site in sites.weights),
        *(((node.name,), "") for node in readers.values()),
    ]
    _refuse_unmatched("exclude", patterns, things)

    named = partial(_is_meant, patterns)
    tensors = {site.tensor for site in sites.activations if named((site.tensor,), site.kind)}
    weights = [site for site in sites.weights if named((site.tensor, site.reader.node.name), site.kind)]
    floats: set[str] = set()
    """First outputs of nodes that must read no integers at all."""
    if operands:
        floats = {output for output, node in readers.items() if named((node.name,), "")}
        floats |= {_place(site.reader)[0] for site in weights if site.kind == "linear"}
        floats |= {use.node.output[0] for site in sites.activations if site.tensor in tensors for use in site.readers}
    lost = {_place(site.reader) for site in weights} | {
        _place(site.reader) for output, site in weight_of.items() if output in floats
    }
    kept = tuple(site for site in sites.weights if _place(site.reader) not in lost)
    activations = (
        replace(site, readers=tuple(use for use in site.readers if use.node.output[0] not in floats))
        for site in sites.activations
        if site.tensor not in tensors
    )
    return SiteList(
        activations=tuple(site for site in activations if site.readers),
        weights=kept,
        float_linears=(
            *sites.float_linears,
            *(
                FloatLinear(node=site.reader.node, reason=EXCLUDED)
                for site in sites.weights
                if site.kind == "linear" and _place(site.reader) in lost
            ),
        ),
    )


def _with_included(sites: SiteList, candidates: SiteList, patterns: Sequence[str]) -> tuple[SiteList, list[str]]:
    """The sites and what patterns mean among the candidates, in graph order; and the names of what is new.

    A linear layer is taken in with its input, and a tensor with all its readers.
    """
    known_tensors = {site.tensor: site for site in sites.activations}
    known_weights = {_place(site.reader) for site in sites.weights}
    new_weights = [site for site in candidates.weights if _place(site.reader) not in known_weights]
    new_tensors = [site for site in candidates.activations if site.tensor not in known_tensors]
    _refuse_unmatched(
        "include",
        patterns,
        [
            *(((site.tensor,), site.kind) for site in new_tensors),
            *(((site.tensor, site.reader.node.name), site.kind) for site in new_weights),
        ],
    )

    named = partial(_is_meant, patterns)
    chosen = [site for site in new_weights if named((site.tensor, site.reader.node.name), site.kind)]
    layers = {_place(site.reader)[0]: site for site in chosen if site.kind == "linear"}
    merged: list[ActivationSite] = []
    included = [site.reader.node.name for site in chosen]
    for candidate in candidates.activations:
        before = known_tensors.get(candidate.tensor)
        wanted = dict.fromkeys(map(_place, before.readers)) if before is not None else {}
        if before is None and named((candidate.tensor,), candidate.kind):
            wanted = dict.fromkeys(map(_place, candidate.readers))
            included.append(candidate.tensor)
        wanted |= dict.fromkeys(place for use in candidate.readers if (place := (use.node.output[0], 0))[0] in layers)
        readers = tuple(use for use in candidate.readers if _place(use) in wanted)
        if readers:
            merged.append(replace(candidate, readers=readers))
    # Operands of products after their rearrangement are no candidates: those are whole tensors.
    names = {site.tensor for site in merged}
    merged += [site for site in sites.activations if site.tensor not in names]
    return (
        SiteList(
            activations=tuple(merged),
            weights=(*sites.weights, *chosen),
            float_linears=tuple(left for left in sites.float_linears if left.node.output[0] not in layers),
        ),
        included,
    )


def _is_meant(patterns: Sequence[str], names: Sequence[str], kind: str) -> bool:
    return any(names_match(pattern, names, kind) for pattern in patterns)


def _refuse_unmatched(what: str, patterns: Iterable[str], things: Sequence[tuple[tuple[str, ...], str]]) -> None:
    for pattern in patterns:
        if not any(names_match(pattern, names, kind) for names, kind in things):
            names = sorted({name for entry, _ in things for name in entry if name})
            kinds = sorted({kind for _, kind in things if kind})
            raise ValueError(
                f"{what} pattern '{pattern}' matches nothing; {len(names)} names exist, such as "
                f"{', '.join(names[:_NAMES_SHOWN])}, of the kinds {', '.join(kinds)}"
            )


def _place(use: Use) -> Place:
    return use.node.output[0], use.slot
