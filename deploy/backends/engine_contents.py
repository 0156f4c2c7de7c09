"""What an engine is made of, as far as graph and parsed network say; what a device ran is read from the engine itself."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import onnx

from deploy.graphs.graph_structure import stored_tensors
from deploy.graphs.op_precision import op_precisions
from deploy.graphs.tensor_types import FLOATS, element_name, tensor_types

_EIGHT_BITS = ("int8", "float8")


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphContents:
    """Weights and matrix products of a graph by type."""

    weights: dict[str, int]
    """Numbers in stored tensors of two or more dimensions, by type."""
    products: dict[str, int]
    """Matrix products by the types of their operands: ``int8 x int8``, ``float8 x float8``, or a float type."""

    @property
    def eight_bit_share(self) -> float:
        """Share of the stored numbers that have 8 bits, as integers or floats."""
        total = sum(self.weights.values())
        return sum(self.weights.get(kind, 0) for kind in _EIGHT_BITS) / total if total else 0.0

    @property
    def precision(self) -> str:
        """For example ``int8 + float16``: the 8-bit type, and the commonest type of the other products."""
        floats = Counter({kind: count for kind, count in self.products.items() if " x " not in kind})
        parts = [kind for kind in _EIGHT_BITS if any(f"{kind} x " in product for product in self.products)]
        return " + ".join([*parts, *(kind for kind, _ in floats.most_common(1))])


def graph_contents(structure: onnx.ModelProto) -> GraphContents:
    """Count what a graph holds; weights in other files are not needed."""
    weights: Counter[str] = Counter()
    for tensor in stored_tensors(structure):
        if len(tensor.dims) > 1:
            weights[element_name(tensor.data_type)] += math.prod(tensor.dims)
    types = tensor_types(structure)
    inputs = {node.name or node.output[0]: node.input[0] for node in structure.graph.node}
    products = Counter(
        FLOATS.get(types.get(inputs[product.node]), "float") if product.precision == "float" else product.precision
        for product in op_precisions(structure)
    )
    return GraphContents(weights=dict(sorted(weights.items())), products=dict(sorted(products.items())))


def layer_types(network: Any) -> dict[str, int]:
    """Layers of a parsed network by the type of their first output, such as ``HALF``."""
    counts: Counter[str] = Counter()
    for place in range(network.num_layers):
        made = network.get_layer(place).get_output(0)
        if made is not None:
            counts[str(made.dtype).rpartition(".")[2]] += 1
    return dict(sorted(counts.items()))
