"""What a written graph must satisfy before it may replace anything: standard operators, and one attention per layer.

The third check, agreement with PyTorch, is in :mod:`export.parity`.
"""

from __future__ import annotations

from pathlib import Path

import onnx

from deploy.graphs.graph_index import GraphIndex
from export.lowered_attention import folds_clip
from export.lowering import LoweredModel
from export.pixel_interface import PixelInterface
from export.tracing import GraphInterface

_PROBABILITIES = {
    "vanilla": ("Softmax",),
    "clipped": ("Softmax", "Mul", "Add", "Clip"),
    "clipped_per_row": ("Softmax", "Mul", "Add", "Clip"),
    "off_by_one": ("Pad", "Softmax", "Slice"),
}
_THRESHOLDED = ("Softmax", "Sub", "Relu")


def check_operators(path: Path) -> None:
    """Only operators of the standard ONNX domain, in a graph that the ONNX checker accepts with shapes inferred.

    Raises:
        ValueError: a foreign operator, or what the checker says.
    """
    model = onnx.load(path, load_external_data=False)
    foreign = sorted(
        {f"{node.domain}.{node.op_type}" for node in model.graph.node if node.domain not in ("", "ai.onnx")}
    )
    if foreign or model.functions:
        raise ValueError(
            f"the graph uses operators outside of standard ONNX: {', '.join(foreign) or 'local functions'}"
        )
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ValueError(f"the ONNX checker refuses the graph: {error}") from error


def check_interface(graph: onnx.GraphProto, interface: GraphInterface | PixelInterface) -> None:
    """The graph's inputs are the expected ones, and the trace fixed no dimension that is to stay free.

    Raises:
        ValueError: names the inputs that were found.
    """
    expected = interface.sizes
    found = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in graph.input
    }
    if found != expected:
        raise ValueError(f"the graph has inputs {found}; expected {expected}")


def expected_attention(lowered: LoweredModel) -> tuple[str, ...]:
    """Operators of one layer's attention, from the product of queries and keys to the output projection."""
    settings = lowered.settings
    folded = lowered.lowering == "folded"
    normaliser = _THRESHOLDED if folded and folds_clip(settings) else _PROBABILITIES[settings.softmax]
    gate = ("Mul",) if settings.gate != "none" else ()
    mask = ("Add",) if lowered.masked else ()
    return ("MatMul", *mask, *normaliser, "MatMul", "Transpose", *gate, "Reshape", "MatMul")


def expected_gate(lowered: LoweredModel) -> tuple[str, ...]:
    """Operators of one layer's gate, from its first product to the context; none without a gate."""
    settings = lowered.settings
    if settings.gate == "none":
        return ()
    hidden = ("MatMul", "Add", "Relu") if settings.gate == "mlp" else ()
    scale = ("Mul",) if lowered.lowering == "literal" and settings.gate_scale != 1.0 else ()
    return (*hidden, "MatMul", "Add", "Sigmoid", *scale, "Unsqueeze", "Mul")


def check_attention(graph: onnx.GraphProto, lowered: LoweredModel) -> None:
    """The expected attention pattern is in the graph exactly once per layer.

    Args:
        graph: with the names of :mod:`export.graph_names`.
        lowered: the model that was traced.

    Raises:
        ValueError: a layer lacks the pattern or a part of it, or the graph has attention that belongs to no layer.
    """
    index = GraphIndex(graph)
    for path in lowered.attention_paths:
        _check_chain(index, f"{path}.scores", expected_attention(lowered), what="attention")
        if gate := expected_gate(lowered):
            _check_chain(index, f"{path}.gate", gate, what="gate")
    softmaxes = [node.name for node in index.nodes if node.op_type == "Softmax"]
    if len(softmaxes) != len(lowered.attention_paths):
        raise ValueError(
            f"the graph has {len(softmaxes)} Softmax nodes for {len(lowered.attention_paths)} attention layers: "
            f"{', '.join(softmaxes)}"
        )


def check_mask(graph: onnx.GraphProto, lowered: LoweredModel, interface: GraphInterface | PixelInterface) -> None:
    """Every layer adds one and the same mask to its scores: of a decoder one number per query and key, else one per key.

    A prefix adds its keys before those of the sequence. Images have no mask, which :func:`check_attention` sees to.

    Args:
        graph: with the shape of every tensor and the names of :mod:`export.graph_names`.
        lowered: the model that was traced.
        interface: of the graph.

    Raises:
        ValueError: names the first layer whose mask is another tensor or has another shape.
    """
    index = GraphIndex(graph)
    shapes = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in graph.value_info
    }
    expected = interface.mask_sizes
    if expected is None:
        return
    if stored := lowered.settings.prefix:
        *sizes, keys = expected
        expected = [*sizes, keys + stored if isinstance(keys, int) else f"{keys} + {stored}"]
    masks = {path: _mask_of(index, f"{path}.scores") for path in lowered.attention_paths}
    shared = next(iter(masks.values()))
    for path, mask in masks.items():
        if mask != shared or shapes.get(mask) != expected:
            raise ValueError(
                f"{path} adds mask '{mask}' of shape {shapes.get(mask)}; expected '{shared}' of {expected}"
            )


def _mask_of(index: GraphIndex, scope: str) -> str:
    """What is added to the product of queries and keys below ``scope``."""
    product = _first_product(index, scope)
    use = index.only_use(product.output[0]) if product is not None else None
    return str(use.node.input[1 - use.slot]) if use is not None and use.node.op_type == "Add" else ""


def _check_chain(index: GraphIndex, scope: str, expected: tuple[str, ...], *, what: str) -> None:
    """Follow the only reader of each output from the first ``MatMul`` below ``scope``."""
    first = _first_product(index, scope)
    found = () if first is None else _operators_from(index, first, limit=len(expected))
    if found != expected:
        raise ValueError(
            f"{scope} misses its {what} pattern: expected {' → '.join(expected)}, found {' → '.join(found) or 'nothing'}"
        )


def _first_product(index: GraphIndex, scope: str) -> onnx.NodeProto | None:
    return next((node for node in index.nodes if node.op_type == "MatMul" and _is_below(node.name, scope)), None)


def _is_below(name: str, scope: str) -> bool:
    return name.startswith((f"{scope}/", f"{scope}."))


def _operators_from(index: GraphIndex, node: onnx.NodeProto, *, limit: int) -> tuple[str, ...]:
    operators = [node.op_type]
    while len(operators) < limit and (use := index.only_use(node.output[0])) is not None:
        node = use.node
        operators.append(node.op_type)
    return tuple(operators)
