"""A Q/DQ graph in which every quantized input slot has a switch: one session serves every subset of the sites.

    activation, linear weight, gain   x -> Q -> DQ -> If(switch, DQ, x) -> the slot
    table                             rows of integers, dequantized, or rows of floats: If(switch, ..., ...)

``If`` copies the branch that is taken; ``Where`` would read both, which for weights takes longer than the products.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from deploy.graphs.graph_index import GraphIndex
from deploy.graphs.sites import SiteList
from deploy.quantization.site_selection import Place

SWITCHES = "quietformer/switches"
"""Input of a switched graph: bool (P,), True where a place reads integers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Switchable:
    """A site as an explanation sees it: what an exclusion names."""

    name: str
    kind: str
    measured: str
    """The tensor that was calibrated for it; of a weight, its own name."""
    is_weight: bool
    places: tuple[Place, ...]
    """Input slots that read it as integers."""


def switchables(sites: SiteList) -> list[Switchable]:
    """Tensors, then weights, in graph order; a weight with several readers once."""
    found = [
        Switchable(
            name=site.tensor,
            kind=site.kind,
            measured=site.measured,
            is_weight=False,
            places=tuple((use.node.output[0], use.slot) for use in site.readers),
        )
        for site in sites.activations
    ]
    weights: dict[str, list[Place]] = {}
    kinds: dict[str, str] = {}
    for site in sites.weights:
        weights.setdefault(site.tensor, []).append((site.reader.node.output[0], site.reader.slot))
        kinds.setdefault(site.tensor, site.kind)
    return found + [
        Switchable(name=name, kind=kinds[name], measured=name, is_weight=True, places=tuple(places))
        for name, places in weights.items()
    ]


def constants_of(
    model: onnx.ModelProto, sites: Sequence[Switchable], *, source: Path | None = None
) -> dict[str, np.ndarray]:
    """Float values of the weights among ``sites``, as they enter their readers, by name; ``source`` is an outline's file."""
    index = GraphIndex(model.graph, source=source)
    return {site.name: index.constant_value(site.name) for site in sites if site.is_weight}


def add_switches(
    model: onnx.ModelProto, sites: Sequence[Switchable], constants: Mapping[str, np.ndarray]
) -> dict[Place, int]:
    """Put switches into a Q/DQ graph, in place.

    Args:
        model: what :func:`deploy.quantization.quantize.quantize_model` made.
        sites: all its sites.
        constants: float values of the weights.

    Returns:
        Index in :data:`SWITCHES` of every place.
    """
    graph = model.graph
    origin = {place: site for site in sites for place in site.places}
    switch = {place: number for number, place in enumerate(origin)}
    graph.initializer.extend(numpy_helper.from_array(value, _float_name(name)) for name, value in constants.items())
    graph.initializer.append(numpy_helper.from_array(np.ones(len(switch), np.int64), f"{SWITCHES}/sizes"))
    graph.input.append(helper.make_tensor_value_info(SWITCHES, onnx.TensorProto.BOOL, [len(switch)]))
    split = helper.make_node(
        "Split", [SWITCHES, f"{SWITCHES}/sizes"], [_switch_name(number) for number in switch.values()], axis=0
    )
    tables = {place[0]: place for place, site in origin.items() if site.kind == "embedding"}
    lookups = {f"{result}/rows": result for result in tables}
    nodes = [split]
    for node in graph.node:
        made = node.output[0]
        if made in lookups:
            place = tables[lookups[made]]
            floats = onnx.NodeProto()
            floats.CopyFrom(node)
            floats.name = f"{node.name}/float"
            floats.input[place[1]] = _float_name(origin[place].name)
            floats.output[0] = f"{place[0]}/float"
            nodes += [floats, node]
        elif made in tables and node.op_type == "DequantizeLinear":
            node.output[0] = f"{made}/dequantized"
            nodes += [node, _choose(switch[tables[made]], node.output[0], f"{made}/float", made)]
        else:
            for slot in range(len(node.input)):
                if (made, slot) not in origin:
                    continue
                site = origin[made, slot]
                floats_name = _float_name(site.name) if site.is_weight else site.name
                switched = f"{made}/{slot}/switched"
                nodes.append(_choose(switch[made, slot], node.input[slot], floats_name, switched))
                node.input[slot] = switched
            nodes.append(node)
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)
    return switch


def _choose(number: int, integers: str, floats: str, output: str) -> onnx.NodeProto:
    branches = {
        name: helper.make_graph(
            [helper.make_node("Identity", [source], [f"{output}/{name}"])],
            f"{output}/{name}",
            [],
            [onnx.ValueInfoProto(name=f"{output}/{name}")],
        )
        for name, source in (("then_branch", integers), ("else_branch", floats))
    }
    return helper.make_node("If", [_switch_name(number)], [output], name=f"{output}/If", **branches)


def _switch_name(number: int) -> str:
    return f"{SWITCHES}/{number}"


def _float_name(weight: str) -> str:
    return f"{weight}/float"
