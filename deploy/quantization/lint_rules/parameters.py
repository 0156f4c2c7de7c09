"""Rules on scales, zero points and element types.

QF001  a zero point that must be 0 is not
QF002  a scale is not a stored positive, finite number of sensible size
QF009  activations are not of the profile's element type
QF014  a weight is not stored in the profile's 8 bits
QF017  the two nodes of a pair have different parameters
QF018  an activation has a scale per channel
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx

from deploy.quantization.lint_rules.finding import Finding, Rule, at
from deploy.quantization.qdq_view import QdqView, is_activation_pair

LARGEST_SCALE = 1e4
"""A step this coarse comes from a mask or a non-finite value, never from an activation."""


def _with_own_parameters(view: QdqView) -> Iterator[onnx.NodeProto]:
    """Nodes of pairs and weights, without each DequantizeLinear that repeats its QuantizeLinear: what is wrong is said once."""
    yield from view.quantizers()
    for node in view.dequantizers():
        source = view.index.producer(node.input[0]) if is_activation_pair(view.index, node) else None
        if source is None or not _repeats(view, node, source):
            yield node


def _repeats(view: QdqView, node: onnx.NodeProto, source: onnx.NodeProto) -> bool:
    if list(node.input[1:]) == list(source.input[1:]):
        return True
    return all(
        mine is not None and other is not None and np.array_equal(mine, other)
        for mine, other in zip(view.parameters(node), view.parameters(source), strict=True)
    )


def zero_points(view: QdqView) -> Iterator[Finding]:
    """QF001: TensorRT's parser takes symmetric integers only; weights are symmetric in every profile."""
    for node in _with_own_parameters(view):
        _, zero_point = view.parameters(node)
        is_weight = node.op_type == "DequantizeLinear" and not is_activation_pair(view.index, node)
        if zero_point is not None and zero_point.any() and (is_weight or view.profile.symmetric):
            yield at(
                node,
                node.input[2],
                "QF001",
                f"zero point is {zero_point.flat[int(np.argmax(zero_point != 0))]}; expected 0",
                advice="quantize symmetrically (profile 'tensorrt')",
            )


def scales(view: QdqView) -> Iterator[Finding]:
    """QF002: a scale that is 0, infinite or computed at run time is refused or destroys the tensor."""
    for node in _with_own_parameters(view):
        scale, _ = view.parameters(node)
        if scale is None:
            problem = "scale is not a stored constant"
        elif not np.isfinite(scale).all() or not (scale > 0).all():
            problem = f"scale is {scale.min()}; expected positive and finite"
        elif scale.max() >= LARGEST_SCALE:
            problem = f"scale is {scale.max():.3g}, which only a mask can explain"
        else:
            continue
        yield at(node, node.input[1], "QF002", problem, advice="calibrate this tensor on real data, without the mask")


def element_types(view: QdqView) -> Iterator[Finding]:
    """QF009: TensorRT takes int8, or FP8 on newer GPUs; x86 kernels are made for uint8."""
    expected = view.bits.activation_type(view.profile)
    for node in view.quantizers():
        _, zero_point = view.parameters(node)
        kind = "uint8" if zero_point is None else str(zero_point.dtype)
        if kind != expected:
            yield at(
                node,
                node.input[0],
                "QF009",
                f"quantized to {kind}; profile '{view.profile.name}' takes {expected}",
                advice=f"quantize with --profile {view.profile.name}",
            )


def stored_weights(view: QdqView) -> Iterator[Finding]:
    """QF014: a weight that is quantized at run time costs time and four times the memory."""
    for linear in view.linears:
        node = view.dequantizer_of(linear.weight)
        if node is None:
            continue
        stored = view.constant(node.input[0])
        expected = view.bits.weight_type(view.profile)
        if stored is None or stored.dtype != expected:
            kind = "float, quantized in the graph" if stored is None else str(stored.dtype)
            yield at(
                linear.node,
                linear.weight,
                "QF014",
                f"weight is stored as {kind}; expected {expected}",
                advice="store the 8-bit numbers and a DequantizeLinear only",
            )


def pairs(view: QdqView) -> Iterator[Finding]:
    """QF017: a pair with two scales multiplies the tensor by their ratio."""
    for node in view.dequantizers():
        if not is_activation_pair(view.index, node):
            continue
        source = view.index.producer(node.input[0])
        assert source is not None
        ours, theirs = view.parameters(node), view.parameters(source)
        if any(
            mine is not None and other is not None and not np.array_equal(mine, other)
            for mine, other in zip(ours, theirs, strict=True)
        ):
            yield at(
                node,
                node.output[0],
                "QF017",
                "scale or zero point differs from the QuantizeLinear's",
                advice="give both nodes the same parameters",
            )


def per_tensor(view: QdqView) -> Iterator[Finding]:
    """QF018: integer kernels take one scale per activation tensor."""
    for node in view.quantizers():
        scale, _ = view.parameters(node)
        if scale is not None and scale.size > 1:
            yield at(
                node,
                node.input[0],
                "QF018",
                f"activation has {scale.size} scales; expected 1",
                advice="quantize activations per tensor",
            )


PARAMETER_RULES: tuple[Rule, ...] = (zero_points, scales, element_types, stored_weights, pairs, per_tensor)
