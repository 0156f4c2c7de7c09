"""The checks after an export find what they are for, and say which layer misses what."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch

from export.checks import check_attention, check_interface, check_operators, expected_attention, expected_gate
from export.lowering import LoweredModel, lower
from export.tracing import GraphInterface
from tests.export.conftest import Exported, ExportTiny

LAYER = "encoder.layer.1.attention.self"


@pytest.fixture
def gated(export_tiny: ExportTiny) -> Exported:
    return export_tiny("clipped", "mlp")


@pytest.fixture
def lowered(gated: Exported) -> LoweredModel:
    return lower(gated.model, lowering="folded")


def _node(graph: onnx.GraphProto, name: str) -> onnx.NodeProto:
    (node,) = [node for node in graph.node if node.name == name]
    assert isinstance(node, onnx.NodeProto)
    return node


def _bypass(graph: onnx.GraphProto, name: str) -> None:
    """Take a node out; its readers read its first input."""
    node = _node(graph, name)
    for reader in graph.node:
        for place, tensor in enumerate(reader.input):
            if tensor == node.output[0]:
                reader.input[place] = node.input[0]
    graph.node.remove(node)


def test_expected_patterns_follow_settings_and_lowering(gated: Exported, lowered: LoweredModel) -> None:
    assert " ".join(expected_attention(lowered)) == "MatMul Add Softmax Sub Relu MatMul Transpose Mul Reshape MatMul"
    assert " ".join(expected_gate(lowered)) == "MatMul Add Relu MatMul Add Sigmoid Unsqueeze Mul"
    literal = lower(gated.model, lowering="literal")
    assert " ".join(expected_attention(literal)[2:6]) == "Softmax Mul Add Clip"
    assert " ".join(expected_gate(literal)) == "MatMul Add Relu MatMul Add Sigmoid Mul Unsqueeze Mul"


def test_an_intact_graph_passes(gated: Exported, lowered: LoweredModel) -> None:
    check_attention(onnx.load(gated.path).graph, lowered)
    check_operators(gated.path)


@pytest.mark.parametrize("part", ["scores/Add", "probabilities/Relu", "context/Mul"])
def test_a_missing_part_of_attention_is_named_with_its_layer(gated: Exported, lowered: LoweredModel, part: str) -> None:
    graph = onnx.load(gated.path).graph
    _bypass(graph, f"{LAYER}.{part}")
    with pytest.raises(ValueError, match=rf"{LAYER}\.scores misses its attention pattern: expected MatMul → Add"):
        check_attention(graph, lowered)


def test_a_missing_part_of_a_gate_is_named_with_its_layer(gated: Exported, lowered: LoweredModel) -> None:
    graph = onnx.load(gated.path).graph
    _bypass(graph, f"{LAYER}.gate/Sigmoid")
    with pytest.raises(ValueError, match=rf"{LAYER}\.gate misses its gate pattern"):
        check_attention(graph, lowered)


def test_attention_that_belongs_to_no_layer_is_refused(gated: Exported, lowered: LoweredModel) -> None:
    graph = onnx.load(gated.path).graph
    graph.node.append(onnx.helper.make_node("Softmax", [graph.output[0].name], ["more"], name="more"))
    with pytest.raises(ValueError, match=r"3 Softmax nodes for 2 attention layers: .*more"):
        check_attention(graph, lowered)


def test_an_operator_outside_of_standard_onnx_is_refused(gated: Exported, tmp_path: Path) -> None:
    model = onnx.load(gated.path)
    _node(model.graph, "embeddings.LayerNorm/LayerNormalization").domain = "com.example"
    onnx.save(model, tmp_path / "foreign.onnx")
    with pytest.raises(ValueError, match=r"outside of standard ONNX: com\.example\.LayerNormalization"):
        check_operators(tmp_path / "foreign.onnx")


def test_a_length_that_the_trace_fixed_is_refused(gated: Exported) -> None:
    graph = onnx.load(gated.path).graph
    interface = GraphInterface(
        output="last_hidden_state", token_types=True, ids=torch.int64, max_length=48, length=None
    )
    check_interface(graph, interface)
    graph.input[0].type.tensor_type.shape.dim[1].dim_value = 16
    with pytest.raises(ValueError, match=r"inputs {'input_ids': \['batch', 16\]"):
        check_interface(graph, interface)


def test_what_the_onnx_checker_says_is_passed_on(gated: Exported, tmp_path: Path) -> None:
    model = onnx.load(gated.path)
    model.graph.node[3].input[0] = "nowhere"
    onnx.save(model, tmp_path / "broken.onnx")
    with pytest.raises(ValueError, match=r"the ONNX checker refuses the graph: .*nowhere"):
        check_operators(tmp_path / "broken.onnx")
