"""Quantization sites of a graph: which tensors and weights a profile turns into integers, and for which readers.

The same rules serve vanilla, clipped and gated attention, so that their comparison is fair.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import onnx

from deploy.graphs.attention_pattern import find_attentions
from deploy.graphs.gate_path import GatePath, find_gate_path
from deploy.graphs.graph_index import GraphIndex, Use
from deploy.graphs.graph_patterns import (
    Linear,
    activation_after,
    embedding_sums,
    embedding_tables,
    find_linears,
    is_head,
    residual_sums,
)
from deploy.graphs.norm_pattern import find_norms
from deploy.graphs.product_operands import (
    leads_only_to,
    measured_tensor,
    product_operands,
    scaled_operand,
    sum_operands,
)
from deploy.graphs.profiles import EVERYTHING, UNIT_INTERVAL, Profile, TensorKind, WeightKind


@dataclass(frozen=True, kw_only=True, slots=True)
class ObservedTensor:
    """A tensor whose range calibration must know."""

    name: str
    kind: TensorKind
    unit_interval: bool
    """Whether its values lie in [0, 1] by construction."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ActivationSite:
    """One tensor with one scale, and the input slots that read it as integers."""

    tensor: str
    kind: TensorKind
    readers: tuple[Use, ...]
    measured: str
    """The tensor whose statistics give the range: the same values, before they were rearranged."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightSite:
    """One constant with one scale, as it enters one node."""

    tensor: str
    kind: WeightKind
    reader: Use
    output_axis: int | None
    """Axis of the output features, for per-channel scales; None where only one scale makes sense."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatLinear:
    """A linear layer that the profile leaves in float, and why."""

    node: onnx.NodeProto
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteList:
    """Everything a profile quantizes in one graph, in graph order."""

    activations: tuple[ActivationSite, ...]
    weights: tuple[WeightSite, ...]
    float_linears: tuple[FloatLinear, ...]


def find_sites(model: onnx.ModelProto, profile: Profile) -> SiteList:
    """Sites of a float graph under one profile.

    Args:
        model: a float graph as exported; weights may be absent (external), only shapes are read.
        profile: one of :data:`deploy.graphs.profiles.PROFILES`, or one of these with other switches.
    """
    index = GraphIndex(model.graph)
    linears = find_linears(index)
    gates = find_gate_path(index, find_attentions(index), linears)
    quantized: list[Linear] = []
    left: list[FloatLinear] = []
    for linear in linears:
        if (reason := reason_for_float(index, linear, profile, gates)) is None:
            quantized.append(linear)
        else:
            left.append(FloatLinear(node=linear.node, reason=reason))
    find = _sites_of_every_tensor if profile.every_tensor else _sites_of_operands
    return SiteList(
        activations=tuple(find(index, quantized, profile, gates)),
        weights=tuple(_weight_sites(index, quantized, profile)),
        float_linears=tuple(left),
    )


def observed_tensors(model: onnx.ModelProto) -> list[ObservedTensor]:
    """What calibration watches: the tensors that any profile quantizes with any switches, in graph order."""
    kinds: dict[str, TensorKind] = {}
    for every_tensor in (False, True):  # the two ways in which profiles differ once all switches are on
        for site in find_sites(model, replace(EVERYTHING, every_tensor=every_tensor)).activations:
            kinds.setdefault(site.measured, site.kind)
    order = {name: place for place, name in enumerate(name for node in model.graph.node for name in node.output)}
    return [
        ObservedTensor(name=name, kind=kinds[name], unit_interval=kinds[name] in UNIT_INTERVAL)
        for name in sorted(kinds, key=lambda name: order.get(name, -1))
    ]


def calibrated_kinds(model: onnx.ModelProto) -> dict[str, str]:
    """Kind of every tensor that calibration watches."""
    return {tensor.name: tensor.kind for tensor in observed_tensors(model)}


def reason_for_float(index: GraphIndex, linear: Linear, profile: Profile, gates: GatePath) -> str | None:
    """Why ``profile`` keeps a linear layer in float; None when it quantizes it."""
    if profile.heads == "off" and is_head(index, linear):
        return "its output is an output of the graph"
    if profile.gate_path == "off" and linear.node.output[0] in gates.linears:
        return "it makes gates, and the gate path is off"
    if min(linear.in_features, linear.out_features) < profile.smallest_gemm:
        return f"{linear.in_features}x{linear.out_features} has a side below {profile.smallest_gemm}"
    return None


def tensor_kinds(index: GraphIndex) -> dict[str, TensorKind]:
    """Kind of every tensor that some profile may quantize (table in :mod:`deploy.graphs.profiles`), most specific first."""
    kinds: dict[str, TensorKind] = {}
    linears = find_linears(index)
    attentions = find_attentions(index)
    for attention in attentions:
        kinds[attention.scores] = "scores"
        kinds[attention.probabilities] = "probabilities"
        kinds[attention.context] = "context"
        if attention.gate_probability is not None:
            kinds[attention.gate_probability] = "gate_probability"
            kinds[attention.pv.output[0]] = "values_mixed"
    for norm in find_norms(index):
        kinds.setdefault(norm.output, "layernorm_output")
    for name in residual_sums(index, linears):
        kinds.setdefault(name, "residual_sum")
    for name in embedding_sums(index, linears):
        kinds.setdefault(name, "embedding_sum")
    for linear in linears:
        if is_head(index, linear):
            continue
        if (activated := activation_after(index, linear.output)) is not None:
            kinds.setdefault(activated, "activation_output")
        else:
            kinds.setdefault(scaled_operand(index, linear.output, attentions), "linear_output")
    for node in index.nodes:
        if node.op_type == "Cast" and node.input[0] in kinds:  # the other float type of the same tensor
            kinds.setdefault(node.output[0], kinds[node.input[0]])
    for linear in linears:
        kinds.setdefault(linear.input, "linear_input")
    return kinds


def _sites_of_every_tensor(
    index: GraphIndex, quantized: list[Linear], profile: Profile, gates: GatePath
) -> Iterator[ActivationSite]:
    """Every tensor of a known kind, for every reader that a switch does not keep in float."""
    kinds = tensor_kinds(index)
    floats = _float_readers(index, profile, gates)
    for tensor in _tensors(index):
        if tensor not in kinds or (profile.gate_path == "off" and tensor in gates.tensors):
            continue
        if kinds[tensor] == "linear_input" and index.before_moves(tensor) in kinds.keys() - {tensor}:
            continue  # a token taken from a tensor that is quantized as a whole
        readers = tuple(
            use
            for use in index.uses(tensor)
            if use.node.op_type != "Shape" and not (floats and leads_only_to(index, use, floats))
        )
        if readers:
            yield ActivationSite(tensor=tensor, kind=kinds[tensor], readers=readers, measured=tensor)


def _float_readers(index: GraphIndex, profile: Profile, gates: GatePath) -> Collection[str]:
    """First outputs of the products, sums and gates that a switch keeps in float."""
    found = set(gates.linears) if profile.gate_path == "off" else set()
    if profile.bmms == "off":
        found.update(use.node.output[0] for use in product_operands(find_attentions(index)))
    if profile.residual_adds == "off":
        found.update(use.node.output[0] for use in sum_operands(index, find_linears(index)))
    return found


def _sites_of_operands(
    index: GraphIndex, quantized: list[Linear], profile: Profile, gates: GatePath
) -> Iterator[ActivationSite]:
    """What enters quantized linear layers, and where the switches say so products of activations and residual sums."""
    kinds = tensor_kinds(index)
    wanted: dict[tuple[str, int], TensorKind] = {(linear.node.output[0], 0): "linear_input" for linear in quantized}
    if profile.bmms == "on":
        wanted |= {
            (use.node.output[0], use.slot): "product_operand" for use in product_operands(find_attentions(index))
        }
    if profile.residual_adds == "on":
        wanted |= {(use.node.output[0], use.slot): "sum_operand" for use in sum_operands(index, find_linears(index))}
    for tensor in _tensors(index):
        readers = tuple(use for use in index.uses(tensor) if (use.node.output[0], use.slot) in wanted)
        if readers:
            measured = measured_tensor(index, tensor, kinds)
            kind = kinds.get(measured, wanted[readers[0].node.output[0], readers[0].slot])
            yield ActivationSite(tensor=tensor, kind=kind, readers=readers, measured=measured)


def _tensors(index: GraphIndex) -> Iterator[str]:
    for tensor in (*index.inputs, *(name for node in index.nodes for name in node.output)):
        if not index.is_constant(tensor):
            yield tensor


def _weight_sites(index: GraphIndex, quantized: list[Linear], profile: Profile) -> Iterator[WeightSite]:
    axes = {linear.node.output[0]: linear.output_axis for linear in quantized}
    tables = {node.output[0] for node in embedding_tables(index)}
    gains = {norm.gain.node.output[0]: norm.gain for norm in find_norms(index)}
    for node in index.nodes:
        key = node.output[0]
        if "linear" in profile.weights and key in axes:
            yield WeightSite(tensor=node.input[1], kind="linear", reader=Use(node, 1), output_axis=axes[key])
        elif "embedding" in profile.weights and key in tables:
            yield WeightSite(tensor=node.input[0], kind="embedding", reader=Use(node, 0), output_axis=None)
        elif "layernorm_gain" in profile.weights and key in gains:
            gain = gains[key]
            yield WeightSite(tensor=node.input[gain.slot], kind="layernorm_gain", reader=gain, output_axis=None)
