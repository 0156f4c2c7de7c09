"""Keep integer kernels exact on processors that add products of unsigned and signed bytes by pairs in 16 bits.

``vpmaddubsw`` of x86 without an 8-bit dot product computes ``a[2k] * w[2k, n] + a[2k+1] * w[2k+1, n]`` (a unsigned, w signed) and cuts the
sum off at 16 bits. Weights that can get there are written as unsigned: for two unsigned bytes ONNX Runtime has a kernel that widens first,
exact, and slower by a fifth to a half. Those that cannot (:mod:`deploy.quantization.pair_sums`) keep the fast one.

    w = scale * (q - zero) = scale * ((q + 128) - (zero + 128))
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnx.external_data_helper import uses_external_data

from deploy.backends.integer_products import OPERATOR
from deploy.graphs.graph_index import GraphIndex, Use
from deploy.quantization.pair_sums import fit_in_any_pairs, fit_in_pairs

_SHIFT = 128


class _Slots(NamedTuple):
    """Inputs of an operator that takes a weight."""

    weight: int
    scale: int
    zero: int


_SLOTS = {OPERATOR: _Slots(1, 3, 5), "DequantizeLinear": _Slots(0, 1, 2)}
_GRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)


class ExactWeights(NamedTuple):
    """What became of the signed weights of a graph."""

    changed: int
    """How many are unsigned now."""
    are_safe: bool
    """Whether none is left that may saturate. False where weights lie in other files, are made while the graph runs, or go into other
    operators: then the runtime must be told to choose its exact kernels for all."""


def use_exact_weights(model: onnx.ModelProto) -> ExactWeights:
    """Rewrite ``model`` in place: signed weights whose sums may saturate become unsigned."""
    index = GraphIndex(model.graph)
    shifted: dict[str, str] = {}
    changed, are_safe = 0, not any(_hides_weights(index, node) for node in index.nodes)
    for tensor in _signed_weights(index):
        uses = index.uses(tensor.name)
        if uses_external_data(tensor) or not all(_can_shift(index, use) for use in uses):
            are_safe = False
        elif not _is_safe(index, tensor):
            for use in uses:
                _shift_zero(model.graph, index, use, shifted)
            unsigned = (numpy_helper.to_array(tensor).astype(np.int16) + _SHIFT).astype(np.uint8)
            tensor.CopyFrom(numpy_helper.from_array(unsigned, tensor.name))
            changed += 1
    return ExactWeights(changed, are_safe)


def may_saturate(model: onnx.ModelProto) -> bool:
    """Whether any sum of a quantized graph, as it stands, can leave 16 bits; True also where that cannot be seen.

    Products of two activations count: which of them a runtime takes as signed is its own affair.
    """
    index = GraphIndex(model.graph)
    if any(_hides_weights(index, node) or _multiplies_activations(index, node) for node in index.nodes):
        return True
    return any(uses_external_data(tensor) or not _is_safe(index, tensor) for tensor in _signed_weights(index))


def _signed_weights(index: GraphIndex) -> list[onnx.TensorProto]:
    """Stored matrices of signed bytes, tables aside from which rows are only looked up."""
    stored = [tensor for tensor in index.initializers.values() if tensor.data_type == TensorProto.INT8]
    return [t for t in stored if len(t.dims) > 1 and not all(_is_lookup(use) for use in index.uses(t.name))]


def _is_safe(index: GraphIndex, tensor: onnx.TensorProto) -> bool:
    """Neighbours are known for the right side of a product, and for it alone."""
    values = numpy_helper.to_array(tensor)
    if all(_is_right_side(index, use) for use in index.uses(tensor.name)):
        return fit_in_pairs(values)
    return fit_in_any_pairs(values)


def _is_right_side(index: GraphIndex, use: Use) -> bool:
    if use.node.op_type != "DequantizeLinear" or use.slot != 0:
        return use.node.op_type == OPERATOR and use.slot == 1
    readers = index.uses(use.node.output[0])
    return bool(readers) and all(reader.node.op_type == "MatMul" and reader.slot == 1 for reader in readers)


def _is_lookup(use: Use) -> bool:
    return use.node.op_type == "Gather" and use.slot == 0


def _can_shift(index: GraphIndex, use: Use) -> bool:
    """Whether the weight's zero point can be seen, or as many as there are scales be made where it has none."""
    slots = _SLOTS.get(use.node.op_type)
    if slots is None or use.slot != slots.weight:
        return False
    said = _input(use.node, slots.zero) or _input(use.node, slots.scale)
    stored = index.initializers.get(said)
    return stored is not None and not uses_external_data(stored)


def _shift_zero(graph: onnx.GraphProto, index: GraphIndex, use: Use, shifted: dict[str, str]) -> None:
    """Give a weight's reader the zero point of unsigned bytes; ``shifted`` remembers by what it is derived from."""
    node, slots = use.node, _SLOTS[use.node.op_type]
    zero = _input(node, slots.zero)
    said = zero or _input(node, slots.scale)
    if said not in shifted:
        stored = numpy_helper.to_array(index.initializers[said])
        old = stored.astype(np.int16) if zero else np.zeros(stored.shape, np.int16)
        shifted[said] = f"{node.output[0]}/unsigned_weight_zero_point"
        graph.initializer.append(numpy_helper.from_array((old + _SHIFT).astype(np.uint8), shifted[said]))
    node.input.extend([""] * (slots.zero + 1 - len(node.input)))
    node.input[slots.zero] = shifted[said]


def _input(node: onnx.NodeProto, slot: int) -> str:
    """Name of an input; empty where the node does not have it."""
    return str(node.input[slot]) if len(node.input) > slot else ""


def _hides_weights(index: GraphIndex, node: onnx.NodeProto) -> bool:
    """Whether ``node`` may bring in signed weights that are no initializer of this graph."""
    if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
        is_made = node.op_type == "QuantizeLinear" or node.input[0] not in index.initializers
        return is_made and index.is_constant(node.input[0])
    return any(entry.type in _GRAPHS for entry in node.attribute)


def _multiplies_activations(index: GraphIndex, node: onnx.NodeProto) -> bool:
    sides = [index.producer(name) for name in index.dynamic_inputs(node)] if node.op_type == "MatMul" else []
    return len(sides) > 1 and all(side is not None and side.op_type == "DequantizeLinear" for side in sides)
