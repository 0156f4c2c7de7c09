"""Each pass on a graph written for it: the structure it makes, and that numbers stay."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from export.graph_cleanup import clean_up, lower_opset


def _model(text: str, *, opset: int = 20, **initializers: np.ndarray) -> ir.Model:
    graph = onnx.parser.parse_graph(text)
    graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in initializers.items())
    return ir.from_proto(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)]))


def _operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def _run(model: ir.Model, x: np.ndarray) -> np.ndarray:
    (output,) = ReferenceEvaluator(ir.to_proto(model)).run(None, {"x": x})
    assert isinstance(output, np.ndarray)
    return output


def test_transposed_weights_are_stored_transposed() -> None:
    weight = np.arange(12, dtype=np.float32).reshape(4, 3)
    model = _model("g (float[B,3] x) => (float[B,4] y) { t = Transpose<perm = [1, 0]>(w)  y = MatMul(x, t) }", w=weight)
    x = np.ones((2, 3), dtype=np.float32)
    expected = _run(model, x)
    clean_up(model)
    assert _operators(model) == ["MatMul"]
    np.testing.assert_array_equal(_run(model, x), expected)


def test_a_matrix_that_is_also_a_table_is_stored_once() -> None:
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    model = _model(
        """g (int64[B] x) => (float[B,4] y) {
            row = Gather(w, x)
            t = Transpose<perm = [1, 0]>(w)
            y = MatMul(row, t)
        }""",
        w=table,
    )
    x = np.array([2, 0])
    expected = _run(model, x)
    clean_up(model)
    assert _operators(model) == ["Gather", "Transpose", "MatMul"]
    assert [value.shape for value in model.graph.initializers.values()] == [(4, 3)]
    np.testing.assert_array_equal(_run(model, x), expected)


def test_computed_reshapes_become_constant() -> None:
    model = _model(
        """g (float[B,T,6] x) => (float[B,T,2,3] y) {
            b = Shape<start = 0, end = 1>(x)
            t = Shape<start = 1, end = 2>(x)
            heads = Constant<value_ints = [2, 3]>()
            shape = Concat<axis = 0>(b, t, heads)
            y = Reshape<allowzero = 1>(x, shape)
        }"""
    )
    x = np.arange(60, dtype=np.float32).reshape(2, 5, 6)
    expected = _run(model, x)
    clean_up(model)
    assert _operators(model) == ["Reshape"]
    shape = model.graph[0].inputs[1]
    assert shape is not None
    assert shape.const_value is not None
    assert shape.const_value.numpy().tolist() == [0, 0, 2, 3]
    np.testing.assert_array_equal(_run(model, x), expected)


def test_a_reshape_with_two_new_unknown_dimensions_keeps_its_computed_shape() -> None:
    model = _model(
        """g (float[B,T] x) => (float[T,B] y) {
            b = Shape<start = 0, end = 1>(x)
            t = Shape<start = 1, end = 2>(x)
            shape = Concat<axis = 0>(t, b)
            y = Reshape(x, shape)
        }"""
    )
    clean_up(model)
    assert "Concat" in _operators(model)


@pytest.mark.parametrize(("starts", "ends", "step", "kept"), [(0, 9, 1, []), (-1, -9, -1, ["Slice"])])
def test_a_slice_that_keeps_everything_goes_and_one_that_reverses_stays(
    starts: int, ends: int, step: int, kept: list[str]
) -> None:
    model = _model(
        f"""g (float[3] x) => (float[3] y) <float[3] a> {{
            s = Constant<value_ints = [{starts}]>()
            e = Constant<value_ints = [{ends}]>()
            axis = Constant<value_ints = [0]>()
            step = Constant<value_ints = [{step}]>()
            a = Slice(x, s, e, axis, step)
            y = Exp(a)
        }}"""
    )
    x = np.array([1, 2, 3], dtype=np.float32)
    expected = _run(model, x)
    clean_up(model)
    assert _operators(model) == [*kept, "Exp"]
    np.testing.assert_array_equal(_run(model, x), expected)


def test_constants_are_not_shared_between_nodes() -> None:
    model = _model(
        """g (float[B] x) => (float[B] y) {
            one = Constant<value_float = 1.0>()
            a = Add(x, one)
            y = Mul(a, one)
        }"""
    )
    clean_up(model)
    assert len(model.graph.initializers) == 2
    np.testing.assert_array_equal(_run(model, np.array([3.0], dtype=np.float32)), [4.0])


def test_equal_computations_are_merged_and_unread_ones_dropped() -> None:
    model = _model(
        """g (float[B] x) => (float[B] y) {
            a = Exp(x)
            b = Exp(x)
            c = Sin(x)
            y = Add(a, b)
        }"""
    )
    clean_up(model)
    assert _operators(model) == ["Exp", "Add"]


def test_an_older_opset_is_declared_where_operators_mean_the_same() -> None:
    model = _model("g (float[B] x) => (float[B] y) { y = Relu(x) }", opset=18)
    lower_opset(model, 17)
    assert model.opset_imports[""] == 17


def test_an_older_opset_without_the_operator_is_refused() -> None:
    model = _model("g (float[B] x) => (float[B] y) { y = Gelu(x) }", opset=20)
    with pytest.raises(ValueError, match="opset 17 has no Gelu as this model needs it; use opset 20"):
        lower_opset(model, 17)
