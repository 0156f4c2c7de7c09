"""Leave parts of a graph in float: shell patterns against the names that people see in a graph.

A pattern may match a linear layer's node name, a weight's name or a tensor's name (``*`` any text, ``?`` one character).
A pattern that matches nothing is an error, because a silently ignored exclusion is a wrong result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from deploy.graphs.profiles import Profile
from deploy.graphs.sites import ActivationSite, FloatLinear, SiteList

EXCLUDED = "excluded by the user"
"""Reason of a layer that a pattern left in float."""
_NAMES_SHOWN = 5


def exclude_sites(sites: SiteList, patterns: Sequence[str], profile: Profile) -> SiteList:
    """Sites without those that a pattern names.

    Naming a node or a weight keeps that layer's weight in float; naming a tensor keeps the tensor in float. Where a
    profile quantizes only what enters linear layers, both sides of a layer go together: integers on one side alone
    cost time and buy nothing.

    Raises:
        ValueError: a pattern matches no node, weight or tensor that the profile quantizes.
    """
    names = {
        *(site.tensor for site in sites.activations),
        *(site.tensor for site in sites.weights),
        *(site.reader.node.name for site in sites.weights),
    }
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            shown = ", ".join(sorted(names)[:_NAMES_SHOWN])
            raise ValueError(f"exclude pattern '{pattern}' matches nothing; {len(names)} names exist, such as {shown}")

    def named(*candidates: str) -> bool:
        return any(fnmatchcase(name, pattern) for name in candidates for pattern in patterns)

    tensors = {site.tensor for site in sites.activations if named(site.tensor)}
    weights = tuple(site for site in sites.weights if not named(site.tensor, site.reader.node.name))
    if not profile.every_tensor:
        weights = tuple(site for site in weights if site.kind != "linear" or site.reader.node.input[0] not in tensors)
    kept = {site.reader.node.output[0] for site in weights}
    left = tuple(
        FloatLinear(node=site.reader.node, reason=EXCLUDED)
        for site in sites.weights
        if site.kind == "linear" and site.reader.node.output[0] not in kept
    )
    activations = tuple(site for site in sites.activations if site.tensor not in tensors)
    if not profile.every_tensor:
        activations = tuple(_readers_among(site, kept) for site in activations)
    return SiteList(
        activations=tuple(site for site in activations if site.readers),
        weights=weights,
        float_linears=(*sites.float_linears, *left),
    )


def _readers_among(site: ActivationSite, kept: set[str]) -> ActivationSite:
    return replace(site, readers=tuple(use for use in site.readers if use.node.output[0] in kept))
