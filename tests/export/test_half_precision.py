"""The float16 graph: strongly typed, casts only at borders, names and interface kept, numbers close to float32."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from export.float_islands import SUMS
from export.graph_files import to_proto
from export.half_precision import make_half
from tests.deploy.encoder_graph import EncoderRecipe, encoder, feeds
from tests.export.test_float_islands import graph_of

FLOATS = {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16}
RECIPES = [
    EncoderRecipe(gate="mlp"),
    EncoderRecipe(softmax="folded", gate="linear"),
    EncoderRecipe(softmax="literal", head=True),
    EncoderRecipe(softmax="per_row", gelu="erf"),
    EncoderRecipe(softmax="padded"),
    EncoderRecipe(softmax="off_by_one"),
]


def half_of(model: onnx.ModelProto | ir.Model) -> onnx.ModelProto:
    typed = model if isinstance(model, ir.Model) else ir.from_proto(to_proto(ir.from_proto(model)))
    make_half(typed)
    proto = to_proto(typed)
    onnx.checker.check_model(proto, full_check=True)
    return proto


def types_of(model: onnx.ModelProto) -> dict[str, int]:
    graph = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    return types | {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.value_info, *graph.output)}


def run_literally(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """Every operator computed in the type it declares."""
    outputs = ReferenceEvaluator(model).run(None, inputs)
    assert isinstance(outputs, list)
    return np.asarray(outputs[0])


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_every_operator_has_one_float_type_and_every_product_is_float16(recipe: EncoderRecipe) -> None:
    half = half_of(encoder(recipe))
    types = types_of(half)
    for node in half.graph.node:
        if node.op_type == "Cast":
            continue
        found = {types[name] for name in (*node.input, *node.output) if name and types[name] in FLOATS}
        assert len(found) <= 1, node.name
        if node.op_type in SUMS:
            assert found == {onnx.TensorProto.FLOAT}
        if node.op_type in ("MatMul", "Gelu", "Sigmoid"):
            assert found == {onnx.TensorProto.FLOAT16}


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_there_is_one_cast_for_each_tensor_at_a_border_and_no_pair_of_them(recipe: EncoderRecipe) -> None:
    half = half_of(encoder(recipe))
    types = types_of(half)
    casts = [node for node in half.graph.node if node.op_type == "Cast" and types[node.input[0]] in FLOATS]
    made = {name: node.op_type for node in half.graph.node for name in node.output}
    assert max(Counter(node.input[0] for node in casts).values()) == 1
    assert all(made.get(node.input[0]) != "Cast" for node in casts)
    assert all(types[node.input[0]] != types[node.output[0]] for node in casts)
    names = [node.name for node in half.graph.node if node.name]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_executed_literally_in_float16_it_agrees_with_float32(recipe: EncoderRecipe) -> None:
    """Tolerance: 5e-3 of the largest output, what the export itself allows."""
    original = encoder(recipe)
    half = half_of(original)
    inputs = feeds(batch=3, length=9, seed=1)
    expected, actual = run_literally(original, inputs), run_literally(half, inputs)
    assert actual.dtype == np.float32
    assert 0 < np.abs(actual - expected).max() < 5e-3 * np.abs(expected).max()


def test_inputs_outputs_and_the_names_of_what_is_float16_are_those_of_the_float32_graph() -> None:
    original = encoder(EncoderRecipe(gate="mlp"))
    half = half_of(original)
    for mine, theirs in ((half.graph.input, original.graph.input), (half.graph.output, original.graph.output)):
        assert [(v.name, v.type.tensor_type.elem_type) for v in mine] == [
            (v.name, v.type.tensor_type.elem_type) for v in theirs
        ]
    before = {name for node in original.graph.node for name in node.output}
    types = types_of(half)
    halves = {name for name, kind in types.items() if kind == onnx.TensorProto.FLOAT16}
    constants = {tensor.name for tensor in half.graph.initializer}
    assert halves - constants <= before
    readers = {name for node in half.graph.node if node.op_type == "MatMul" for name in node.input}
    assert readers <= halves


W = np.eye(8)


def test_a_weight_beyond_the_range_of_float16_is_an_error_that_names_it() -> None:
    text = "(float[B,8] x) => (float[B,8] y) { y = MatMul(x, table) }"
    with pytest.raises(ValueError, match="'table' reaches 70000, which float16"):
        half_of(graph_of(text, {"table": W * 70_000}))
    with pytest.raises(ValueError, match="'table' reaches nan"):
        half_of(graph_of(text, {"table": W * np.nan}))


def test_a_single_number_that_is_too_large_becomes_the_largest_float16() -> None:
    text = "(float[B,8] x) => (float[B,8] y) { h = MatMul(x, w) c = Min(h, top) y = MatMul(c, w) }"
    half = half_of(graph_of(text, {"w": W, "top": np.array(3e38)}))
    (top,) = (tensor for tensor in half.graph.initializer if tensor.name == "top")
    assert onnx.numpy_helper.to_array(top) == np.float16(65504)


def test_a_float_input_is_cast_once_and_stays_float32_outside() -> None:
    text = "(float[B,8] x) => (float[B,8] y, float[B,8] z) { y = MatMul(x, w) z = MatMul(x, w) }"
    half = half_of(graph_of(text, {"w": W}))
    assert [(n.op_type, list(n.input), list(n.output)) for n in half.graph.node] == [
        ("Cast", ["x"], ["x/float16"]),
        ("MatMul", ["x/float16", "w"], ["y/float16"]),
        ("Cast", ["y/float16"], ["y"]),
        ("MatMul", ["x/float16", "w"], ["z/float16"]),
        ("Cast", ["z/float16"], ["z"]),
    ]


def test_an_output_that_is_also_read_inside_has_both_forms() -> None:
    text = "(float[B,8] x) => (float[B,8] n, float[B,8] y) { h = MatMul(x, w) n = LayerNormalization(h, g) y = MatMul(n, w) }"
    half = half_of(graph_of(text, {"w": W, "g": np.ones(8)}))
    types = types_of(half)
    assert (types["n"], types["n/float16"], types["h"], types["h/float32"]) == (1, 10, 10, 1)


def test_a_constant_of_both_kinds_of_readers_is_stored_in_both_types() -> None:
    text = "(float[B,8] x) => (float[B,8] y) { h = MatMul(x, w) n = LayerNormalization(h, g) m = MatMul(n, w) y = Mul(m, g) }"
    half = half_of(graph_of(text, {"w": W, "g": np.ones(8)}))
    stored = {tensor.name: tensor.data_type for tensor in half.graph.initializer}
    assert stored == {"w": 10, "g": 10, "g/float32": 1}


def test_integers_that_are_read_in_float16_alone_are_converted_at_once() -> None:
    text = "(float[B,8] x, int64[B,8] keep) => (float[B,8] y) { f = Cast<to=1>(keep) h = MatMul(x, w) m = Mul(h, f) y = MatMul(m, w) }"
    half = half_of(graph_of(text, {"w": W}))
    (cast,) = (node for node in half.graph.node if node.output[0] == "f")
    assert cast.attribute[0].i == onnx.TensorProto.FLOAT16
    assert sum(node.op_type == "Cast" for node in half.graph.node) == 3


def test_a_comparison_reads_its_floats_as_they_are() -> None:
    text = "(float[B,8] x) => (bool[B,8] b, float[B,8] y) { h = MatMul(x, w) b = Greater(h, t) y = MatMul(h, w) }"
    half = half_of(graph_of(text, {"w": W, "t": np.array(0.5)}))
    types = types_of(half)
    assert (types["t"], types["h"]) == (10, 10)


def test_a_quantized_graph_and_one_with_subgraphs_are_refused() -> None:
    text = "(float[B,8] x) => (float[B,8] y) { q = QuantizeLinear(x, s) y = DequantizeLinear(q, s) }"
    with pytest.raises(ValueError, match="the graph is quantized"):
        half_of(graph_of(text, {"s": np.array(0.1)}))
    text = "(bool b, float[8] x) => (float[8] y) { y = If(b) <then_branch = t () => (float[8] z) { z = Neg(x) }, else_branch = e () => (float[8] u) { u = Abs(x) }> }"
    with pytest.raises(ValueError, match=r"\(If\) holds graphs"):
        half_of(graph_of(text))
