"""Write QuantizeLinear and DequantizeLinear into a graph.

    activation  x -> QuantizeLinear -> DequantizeLinear -> the readers of the site; other readers keep x
                x -> Clip -> ... where the integers are narrower than the type that holds them
    weight      int8 constant -> DequantizeLinear -> its reader
    table       int8 constant -> Gather -> DequantizeLinear: equal to dequantizing first (one scale for the table)
                and it touches only the rows that are read

Names tell their origin: node ``<tensor>/QuantizeLinear``, tensors ``<tensor>/scale``, ``<tensor>/quantized``, ...
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from deploy.graphs.graph_index import GraphIndex
from deploy.graphs.sites import ActivationSite, WeightSite
from deploy.graphs.unread_constants import drop_unread_constants, read_tensors
from deploy.quantization.weights import ScaleType, rounded_scale


@dataclass(frozen=True, kw_only=True, slots=True)
class ScaledTensor:
    """An activation site with its parameters."""

    site: ActivationSite
    scale: float
    zero_point: int
    dtype: str
    """``int8``, ``uint8``, of 16 bits, or ``float8_e4m3fn``."""
    bounds: tuple[int, int] | None = None
    """Smallest and largest integer, where these are not those of the type."""
    scale_type: ScaleType = np.float32
    """Type of the tensor, which its scale has as well."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScaledWeight:
    """One constant in integers and everybody who reads it."""

    sites: Sequence[WeightSite]
    integers: np.ndarray
    """int8, int16 or E4M3, in the layout in which it enters its readers."""
    scale: np.ndarray
    """() or (N,), of the type that the readers take."""


class QdqWriter:
    """Collects edits of one model and applies them in place, keeping the order topological."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._graph = model.graph
        self._after: dict[str, list[onnx.NodeProto]] = defaultdict(list)
        self._before: dict[str, list[onnx.NodeProto]] = defaultdict(list)
        self._inputs: dict[tuple[str, int], str] = {}
        self._outputs: dict[str, str] = {}
        self._new: list[onnx.TensorProto] = []

    def add_activation(self, scaled: ScaledTensor) -> None:
        """Quantize one tensor for the readers of its site.

        Raises:
            ValueError: a scale that its type does not hold; names the tensor.
        """
        tensor = scaled.site.tensor
        zero_point = np.asarray(scaled.zero_point, scaled.dtype)
        try:
            scale = rounded_scale(scaled.scale, scaled.scale_type)
        except ValueError as error:
            raise ValueError(f"tensor '{tensor}' {error}") from error
        parameters = self._parameters(tensor, scale, zero_point)
        integers, floats = f"{tensor}/quantized", f"{tensor}/dequantized"
        source = tensor
        if scaled.bounds is not None:
            source = clipped_name(tensor)
            ends = [np.float32((bound - scaled.zero_point) * scaled.scale) for bound in scaled.bounds]
            names = [f"{tensor}/{end}" for end in ("lowest", "highest")]
            self._new += [numpy_helper.from_array(np.asarray(end), name) for end, name in zip(ends, names, strict=True)]
            self._after[tensor].append(helper.make_node("Clip", [tensor, *names], [source], name=f"{tensor}/Clip"))
        self._after[tensor] += [
            helper.make_node("QuantizeLinear", [source, *parameters], [integers], name=f"{tensor}/QuantizeLinear"),
            _dequantize(tensor, [integers, *parameters], floats),
        ]
        for use in scaled.site.readers:
            self._inputs[use.node.output[0], use.slot] = floats

    def add_weight(self, scaled: ScaledWeight) -> None:
        """Store one constant as integers, for all its readers."""
        tensor = scaled.sites[0].tensor
        zeros = np.zeros(scaled.scale.shape, scaled.integers.dtype)
        parameters = self._parameters(tensor, scaled.scale, zeros)
        integers, floats = f"{tensor}/quantized", f"{tensor}/dequantized"
        self._new.append(numpy_helper.from_array(np.ascontiguousarray(scaled.integers), integers))
        axis = {"axis": scaled.sites[0].output_axis} if scaled.scale.ndim else {}
        shared: list[onnx.NodeProto] = []
        for site in scaled.sites:
            result = site.reader.node.output[0]
            if site.kind == "embedding":
                rows = f"{result}/rows"
                self._inputs[result, site.reader.slot] = integers
                self._outputs[result] = rows
                self._after[result].insert(0, _dequantize(rows, [rows, *parameters], result))
            else:
                self._inputs[result, site.reader.slot] = floats
                if not shared:
                    shared.append(_dequantize(tensor, [integers, *parameters], floats, **axis))
                    self._before[result] += shared

    def _parameters(self, tensor: str, scale: np.ndarray, zero_point: np.ndarray) -> tuple[str, str]:
        names = f"{tensor}/scale", f"{tensor}/zero_point"
        self._new += [numpy_helper.from_array(scale, names[0]), numpy_helper.from_array(zero_point, names[1])]
        return names

    def apply(self) -> None:
        """Edit the graph: insert, redirect, then drop constants and constant nodes that nothing reads any more."""
        nodes: list[onnx.NodeProto] = []
        for value in self._graph.input:
            nodes += self._after.get(value.name, [])
        for node in self._graph.node:
            key = node.output[0]
            nodes += self._before.get(key, [])
            for slot in range(len(node.input)):
                node.input[slot] = self._inputs.get((key, slot), node.input[slot])
            made = list(node.output)
            for slot, name in enumerate(made):
                node.output[slot] = self._outputs.get(name, name)
            nodes.append(node)
            for name in made:
                nodes += self._after.get(name, [])
        kept = _without_unread(nodes, {value.name for value in self._graph.output})
        del self._graph.node[:]
        self._graph.node.extend(kept)
        self._graph.initializer.extend(self._new)
        drop_unread_constants(self._graph)
        self._forget_types_of_the_gone()

    def _forget_types_of_the_gone(self) -> None:
        known = read_tensors(self._graph) | {name for node in self._graph.node for name in node.output}
        for place in reversed(range(len(self._graph.value_info))):
            if self._graph.value_info[place].name not in known:
                del self._graph.value_info[place]


def clipped_name(tensor: str) -> str:
    """Name of a tensor after it was bounded to the integers that stand for it."""
    return f"{tensor}/clipped"


def quantized_tensor(producer: onnx.NodeProto | None, entering: str) -> str:
    """The tensor that a QuantizeLinear is for, given what enters it and who makes that: seen through the Clip written here."""
    if producer is not None and producer.op_type == "Clip" and entering == clipped_name(producer.input[0]):
        return str(producer.input[0])
    return entering


def _dequantize(origin: str, inputs: list[str], output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node("DequantizeLinear", inputs, [output], name=f"{origin}/DequantizeLinear", **attributes)


def _without_unread(nodes: list[onnx.NodeProto], outputs: set[str]) -> list[onnx.NodeProto]:
    """Drop nodes whose outputs nobody reads (the ``Transpose`` of a weight that is now stored transposed)."""
    read = set(outputs)
    kept: list[onnx.NodeProto] = []
    for node in reversed(nodes):
        if read & set(node.output):
            kept.append(node)
            read.update(node.input, GraphIndex.inner_reads(node))
    return kept[::-1]
