"""The small encoder as other exporters write it: older operator sets, norms and GELU written out, Constant nodes, no names."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.deploy.encoder_graph import EncoderRecipe, encoder

_LAST_BEFORE_WHOLE_NORMS = 16
_LAST_BEFORE_WHOLE_GELU = 19


def foreign_encoder(
    opset: int,
    *,
    recipe: EncoderRecipe | None = None,
    constants: str = "initializers",
    names: str = "empty",
    mask_value: float | None = None,
    mask_type: int = onnx.TensorProto.INT64,
) -> onnx.ModelProto:
    """Rewrite the encoder for an operator set.

    Args:
        opset: 13 to 23; norms and GELU are whole where it has them.
        recipe: of the encoder.
        constants: ``initializers`` or ``nodes``.
        names: of the nodes, ``empty``, ``equal`` or ``kept``.
        mask_value: what is added to masked scores instead of -1e4; infinite ones through a ``Where``.
        mask_type: element type of the attention mask.
    """
    model = encoder(recipe or EncoderRecipe(mask="scaled"))
    del model.metadata_props[:]
    graph = model.graph
    model.opset_import[0].version = opset
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.op_type == "LayerNormalization" and opset <= _LAST_BEFORE_WHOLE_NORMS:
            nodes += _written_out_norm(node, opset)
        elif node.op_type == "Gelu" and opset <= _LAST_BEFORE_WHOLE_GELU:
            nodes += _written_out_gelu(node)
        else:
            nodes.append(node)
    new = {"norm/two": 2.0, "norm/epsilon": 1e-5, "gelu/root": np.sqrt(2), "gelu/one": 1.0, "gelu/half": 0.5}
    graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in new.items()
    )
    if mask_value is not None:
        _mask_with(graph, nodes, mask_value)
    if mask_type != onnx.TensorProto.INT64:
        mask = next(value for value in graph.input if value.name == "attention_mask")
        mask.type.tensor_type.elem_type = mask_type
    if constants == "nodes":
        stored = [helper.make_node("Constant", [], [tensor.name], value=tensor) for tensor in graph.initializer]
        del graph.initializer[:]
        nodes = stored + nodes
    for place, node in enumerate(nodes):
        node.name = {"empty": "", "equal": node.op_type, "kept": f"node_{place}"}[names]
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)
    read = {name for node in graph.node for name in node.input}
    for place in reversed(range(len(graph.initializer))):
        if graph.initializer[place].name not in read:
            del graph.initializer[place]
    onnx.checker.check_model(model)
    return model


def _written_out_norm(node: onnx.NodeProto, opset: int) -> list[onnx.NodeProto]:
    source, gain, bias = node.input
    out = node.output[0]
    mean: dict[str, Any] = {"axes": [-1], "keepdims": 1}
    assert opset < 18  # ReduceMean takes its axes as an input from 18 on
    return [
        helper.make_node("ReduceMean", [source], [f"{out}/mean"], **mean),
        helper.make_node("Sub", [source, f"{out}/mean"], [f"{out}/centred"]),
        helper.make_node("Sub", [source, f"{out}/mean"], [f"{out}/again"]),
        helper.make_node("Pow", [f"{out}/again", "norm/two"], [f"{out}/square"]),
        helper.make_node("ReduceMean", [f"{out}/square"], [f"{out}/variance"], **mean),
        helper.make_node("Add", [f"{out}/variance", "norm/epsilon"], [f"{out}/safe"]),
        helper.make_node("Sqrt", [f"{out}/safe"], [f"{out}/root"]),
        helper.make_node("Div", [f"{out}/centred", f"{out}/root"], [f"{out}/unit"]),
        helper.make_node("Mul", [f"{out}/unit", gain], [f"{out}/scaled"]),
        helper.make_node("Add", [f"{out}/scaled", bias], [out]),
    ]


def _written_out_gelu(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    source, out = node.input[0], node.output[0]
    return [
        helper.make_node("Div", [source, "gelu/root"], [f"{out}/scaled"]),
        helper.make_node("Erf", [f"{out}/scaled"], [f"{out}/erf"]),
        helper.make_node("Add", [f"{out}/erf", "gelu/one"], [f"{out}/more"]),
        helper.make_node("Mul", [source, f"{out}/more"], [f"{out}/twice"]),
        helper.make_node("Mul", [f"{out}/twice", "gelu/half"], [out]),
    ]


def _mask_with(graph: onnx.GraphProto, nodes: list[onnx.NodeProto], value: float) -> None:
    """``bias`` becomes 0 on tokens and ``value`` on padding, chosen, since 0 times an infinity is no number."""
    graph.initializer.append(numpy_helper.from_array(np.asarray(value, np.float32), "mask/value"))
    place = next(place for place, node in enumerate(nodes) if list(node.output) == ["bias"])
    nodes[place] = helper.make_node("Where", ["mask/real", "zero", "mask/value"], ["bias"])
    nodes.insert(place, helper.make_node("Cast", ["am"], ["mask/real"], to=onnx.TensorProto.BOOL))
    graph.initializer.append(numpy_helper.from_array(np.asarray(0.0, np.float32), "zero"))
