"""Every site that a graph has, whatever the profile: what becomes integers, what stays float, and why."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from deploy.graphs.profiles import EVERYTHING, Profile
from deploy.graphs.site_choice import SiteChoice
from deploy.graphs.sites import find_sites
from deploy.quantization.site_selection import EXCLUDED, select_sites


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedSite:
    """One tensor or weight that some profile may quantize."""

    name: str
    kind: str
    reason: str | None
    """Why it stays float; None where it becomes integers."""


def list_sites(model: onnx.ModelProto, profile: Profile, choice: SiteChoice) -> list[ListedSite]:
    """Sites under a profile and a choice, tensors first, in graph order.

    Args:
        model: float graph, or its outline.
        profile: whose sites.
        choice: what is changed about them.

    Raises:
        ValueError: see :func:`deploy.quantization.site_selection.select_sites`.
    """
    selection = select_sites(model, profile, choice)
    everything = find_sites(model, EVERYTHING)
    kinds = {site.tensor: site.kind for site in everything.activations}
    kinds |= {site.tensor: site.kind for site in selection.sites.activations}
    weights = {site.tensor: site for site in everything.weights}
    quantized = {site.tensor for site in selection.sites.activations}
    quantized |= {site.tensor for site in selection.sites.weights}
    layers = {left.node.name: left.reason for left in selection.sites.float_linears}
    excluded = set(selection.recorded.excluded)
    otherwise = f"profile {profile.name} leaves it; --include takes it in"
    listed = [
        ListedSite(name=name, kind=kind, reason=_reason(name, quantized, excluded, otherwise))
        for name, kind in kinds.items()
    ]
    for name, site in weights.items():
        reason = layers.get(site.reader.node.name) or _reason(name, quantized, excluded, otherwise)
        listed.append(ListedSite(name=name, kind=site.kind, reason=None if name in quantized else reason))
    return listed


def _reason(name: str, quantized: set[str], excluded: set[str], otherwise: str) -> str | None:
    if name in quantized:
        return None
    return EXCLUDED if name in excluded else otherwise
