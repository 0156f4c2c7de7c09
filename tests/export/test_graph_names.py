"""Names in exported graphs: readable, unique, complete, and the same whatever the weights are."""

from __future__ import annotations

import onnx
import pytest

from tests.export.conftest import ExportTiny

NODES = [
    "mask/Mul",
    "embeddings.word_embeddings/Gather",
    "encoder.layer.0.attention.self.query/MatMul",
    "encoder.layer.0.attention.self.query/Add",
    "encoder.layer.1.attention.self.scores/MatMul",
    "encoder.layer.1.attention.self.scores/Add",
    "encoder.layer.1.attention.self.probabilities/Softmax",
    "encoder.layer.1.attention.self.probabilities/Relu",
    "encoder.layer.1.attention.self.context/MatMul",
    "encoder.layer.1.attention.self.context/Mul",
    "encoder.layer.1.attention.self.gate.hidden/MatMul",
    "encoder.layer.1.attention.self.gate.projection/MatMul",
    "encoder.layer.1.attention.self.gate/Sigmoid",
    "encoder.layer.1.attention.output.dense/MatMul",
    "encoder.layer.1.attention.output/Add",
    "encoder.layer.1.attention.output.LayerNorm/LayerNormalization",
    "encoder.layer.1.intermediate.intermediate_act_fn/Gelu",
    "encoder.layer.1.output.LayerNorm/LayerNormalization",
]


@pytest.fixture(scope="module")
def graph(export_tiny: ExportTiny) -> onnx.GraphProto:
    return onnx.load(export_tiny("clipped", "mlp").path).graph


@pytest.mark.parametrize("name", NODES)
def test_nodes_are_called_after_module_and_operator(graph: onnx.GraphProto, name: str) -> None:
    (node,) = [node for node in graph.node if node.name == name]
    assert node.op_type == name.rpartition("/")[2]
    assert list(node.output) in ([name], [graph.output[0].name])


def test_weights_are_called_after_the_parameters_they_hold(graph: onnx.GraphProto) -> None:
    shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    assert shapes["encoder.layer.0.attention.self.query.weight"] == (32, 32)
    assert shapes["encoder.layer.0.intermediate.dense.weight"] == (32, 64)
    assert shapes["encoder.layer.0.attention.self.gate.hidden.weight"] == (32, 12)
    assert shapes["encoder.layer.0.attention.self.gate.projection.weight"] == (12, 4)
    assert shapes["encoder.layer.0.output.LayerNorm.bias"] == (32,)
    assert shapes["embeddings.word_embeddings.weight"] == (100, 32)


def test_constants_are_called_after_reader_and_input(graph: onnx.GraphProto) -> None:
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    assert constants["mask/Mul.B"] == -1e4
    assert constants["encoder.layer.0.attention.self.probabilities/Sub.B"] == pytest.approx(0.125 / 1.125)
    assert constants["encoder.layer.0.attention.self/Reshape.shape"].tolist() == [0, 0, 4, 8]


def test_every_name_is_given_once_and_every_initializer_is_read(graph: onnx.GraphProto) -> None:
    nodes = [node.name for node in graph.node]
    assert len(set(nodes)) == len(nodes)
    initializers = {tensor.name for tensor in graph.initializer}
    read = {name for node in graph.node for name in node.input}
    assert initializers <= read
    assert len(initializers) == len(graph.initializer)


def test_every_tensor_states_its_shape(graph: onnx.GraphProto) -> None:
    stated = {value.name: value.type.tensor_type.shape for value in (*graph.value_info, *graph.output)}
    made = {name for node in graph.node for name in node.output}
    assert made <= stated.keys()
    scores = [dim.dim_param or dim.dim_value for dim in stated["encoder.layer.0.attention.self.scores/Add"].dim]
    assert scores == ["batch", 4, "length", "length"]
    linear = [dim.dim_param or dim.dim_value for dim in stated["encoder.layer.0.intermediate.dense/MatMul"].dim]
    assert linear == ["batch", "length", 64]


def test_names_do_not_depend_on_the_weights(export_tiny: ExportTiny) -> None:
    """Fresh biases are all zero: equal values must not make one initializer of them."""
    one, other = (onnx.load(export_tiny(model={"num_layers": 1, **more}).path).graph for more in ({}, {"seed": 5}))
    assert [node.name for node in one.node] == [node.name for node in other.node]
    assert [tensor.name for tensor in one.initializer] == [tensor.name for tensor in other.initializer]
    names = {tensor.name for tensor in one.initializer}
    assert {f"encoder.layer.0.attention.self.{part}.bias" for part in ("query", "key", "value")} <= names
