"""Each rewrite on a graph written for it: the structure it makes, and that numbers stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from export.operator_forms import (
    divide_by_roots,
    drop_factors_of_one,
    join_rms_norms,
    unify,
    write_gemm_as_matmul,
)

RMS_NORM = """g (float[B,T,4] x) => (float[B,T,4] y) {
    square = Pow(x, two) mean = ReduceMean<keepdims = 1>(square, last) safe = Add(mean, epsilon) root = Sqrt(safe)
    inverse = Reciprocal(root) unit = Mul(x, inverse) y = Mul(gain, unit)
}"""
RMS_CONSTANTS: dict[str, Any] = {
    "two": np.float32(2),
    "last": np.array([-1]),
    "epsilon": np.float32(1e-3),
    "gain": np.array([0.5, 1, 2, -1], np.float32),
}


def _model(text: str, *, opset: int = 23, **initializers: Any) -> ir.Model:
    graph = onnx.parser.parse_graph(text)
    graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in initializers.items()
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    return ir.from_proto(onnx.shape_inference.infer_shapes(model))


def _operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def _run(model: ir.Model, x: np.ndarray) -> np.ndarray:
    (output,) = ReferenceEvaluator(ir.to_proto(model)).run(None, {"x": x})
    assert isinstance(output, np.ndarray)
    return output


def _rewritten(model: ir.Model, rewrite: Callable[[ir.Model], None], x: np.ndarray) -> list[str]:
    """Operators after the rewrite, which must leave the numbers alone."""
    expected = _run(model, x)
    rewrite(model)
    np.testing.assert_allclose(_run(model, x), expected, rtol=1e-6)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    return _operators(model)


def _x(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("product", ["Mul(x, one)", "Mul(one, x)"])
def test_a_factor_of_one_is_dropped(product: str) -> None:
    text = f"g (float[B,4] x) => (float[B,4] y) {{ a = {product} y = Relu(a) }}"
    assert _rewritten(_model(text, one=np.float32(1)), drop_factors_of_one, _x(3, 4)) == ["Relu"]


def test_a_factor_that_is_not_one_or_that_widens_the_shape_stays() -> None:
    text = "g (float[4] x) => (float[4] y) { a = Mul(x, factor) y = Relu(a) }"
    assert _rewritten(_model(text, factor=np.float32(2)), drop_factors_of_one, _x(4)) == ["Mul", "Relu"]
    text = "g (float[4] x) => (float[1,4] y) { a = Mul(x, factor) y = Relu(a) }"
    model = _model(text, factor=np.ones((1, 1), np.float32))
    assert _rewritten(model, drop_factors_of_one, _x(4)) == ["Mul", "Relu"]


def test_a_gemm_becomes_a_product_and_a_bias() -> None:
    weight, bias = _x(5, 4), _x(5)
    text = "g (float[B,4] x) => (float[B,5] y) { y = Gemm<transB = 1>(x, w, b) }"
    operators = _rewritten(_model(text, w=weight, b=bias), write_gemm_as_matmul, _x(3, 4))
    assert operators == ["Transpose", "MatMul", "Add"]
    text = "g (float[B,4] x) => (float[B,5] y) { y = Gemm(x, w) }"
    assert _rewritten(_model(text, w=weight.T.copy()), write_gemm_as_matmul, _x(3, 4)) == ["MatMul"]


def test_a_scaled_gemm_stays() -> None:
    text = "g (float[B,4] x) => (float[B,5] y) { y = Gemm<alpha = 0.5>(x, w) }"
    assert _rewritten(_model(text, w=_x(4, 5)), write_gemm_as_matmul, _x(3, 4)) == ["Gemm"]


def test_a_product_with_an_inverse_root_becomes_a_division() -> None:
    operators = _rewritten(_model(RMS_NORM, **RMS_CONSTANTS), divide_by_roots, _x(2, 3, 4))
    assert operators == ["Pow", "ReduceMean", "Add", "Sqrt", "Div", "Mul"]


def test_an_inverse_that_others_read_stays_for_them() -> None:
    text = """g (float[4] x) => (float[4] y) {
        root = Sqrt(x) inverse = Reciprocal(root) a = Mul(x, inverse) y = Add(a, inverse)
    }"""
    operators = _rewritten(_model(text), divide_by_roots, np.abs(_x(4)) + 1)
    assert sorted(operators) == ["Add", "Div", "Reciprocal", "Sqrt"]


@pytest.mark.parametrize(("opset", "operators"), [(23, ["RMSNormalization"]), (22, ["Pow", "ReduceMean", "Add", "Sqrt", "Div", "Mul"])])  # fmt: skip
def test_a_norm_is_one_operator_where_the_operator_set_has_it(opset: int, operators: list[str]) -> None:
    assert _rewritten(_model(RMS_NORM, opset=opset, **RMS_CONSTANTS), unify, _x(2, 3, 4)) == operators


@pytest.mark.parametrize(
    "change", [{"two": np.float32(3)}, {"last": np.array([1])}, {"gain": np.ones((1, 4), np.float32)}]
)
def test_what_is_not_quite_that_norm_stays_written_out(change: dict[str, Any]) -> None:
    model = _model(RMS_NORM, **{**RMS_CONSTANTS, **change})
    divide_by_roots(model)
    assert "RMSNormalization" not in _rewritten(model, join_rms_norms, np.abs(_x(2, 3, 4)))
