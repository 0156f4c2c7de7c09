"""Which operators stay in float32, on graphs written as text."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from export.float_islands import find_islands
from export.graph_files import to_proto


def graph_of(text: str, constants: dict[str, np.ndarray] | None = None, *, opset: int = 20) -> ir.Model:
    graph = onnx.parser.parse_graph(f"g {text}")
    graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in (constants or {}).items()
    )
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=10)
    return ir.from_proto(to_proto(ir.from_proto(proto)))


def islands_of(text: str, constants: dict[str, np.ndarray] | None = None, *, opset: int = 20) -> set[str]:
    """First outputs of the nodes that stay in float32."""
    model = graph_of(text, constants, opset=opset)
    return {str(node.outputs[0].name) for node in find_islands(model.graph, opset=opset).nodes}


W = np.ones((8, 8))
ONE = np.array(1.0)
ATTENTION = "(float[B,8] a, int64[B] keep) => (float[B,8] y) { q = MatMul(a, w) k = MatMul(a, w2) %s y = MatMul(p, w) }"
CONSTANTS = {"w": W, "w2": W, "one": ONE, "low": np.array(-1e4), "t": np.array(0.1)}


def test_a_softmax_takes_the_mask_its_sum_and_the_clip_along() -> None:
    body = """
        s = MatMul(q, k) m = Cast<to=1>(keep) n = Sub(one, m) mask = Mul(n, low)
        x = Add(s, mask) p0 = Softmax(x) p1 = Sub(p0, t) p = Relu(p1)
    """
    assert islands_of(ATTENTION % body, CONSTANTS) == {"m", "n", "mask", "x", "p0", "p1", "p"}


def test_a_residual_sum_stays_in_float16_between_its_norms() -> None:
    body = """(float[B,8] a) => (float[B,8] y) {
        h = MatMul(a, w) r1 = Add(h, b) n1 = LayerNormalization(r1, g) h1 = MatMul(n1, w) r2 = Add(r1, h1)
        n2 = LayerNormalization(r2, g) h2 = MatMul(n2, w) y = Add(r2, h2)
    }"""
    assert islands_of(body, {"w": W, "b": np.ones(8), "g": np.ones(8)}) == {"n1", "n2"}


def test_a_written_out_norm_is_one_island_and_its_sum_below_stays_out() -> None:
    body = """(float[B,8] a) => (float[B,8] y) {
        h = MatMul(a, w) r = Add(h, b) sq = Pow(r, two) mean = ReduceMean<keepdims=1>(sq, last) v = Add(mean, eps)
        d = Sqrt(v) inv = Reciprocal(d) x = Mul(r, inv) n = Mul(g, x) o = MatMul(n, w) y = Add(r, o)
    }"""
    constants = {"w": W, "b": np.ones(8), "g": np.ones(8), "two": np.array(2.0), "eps": np.array(1e-6)}
    model_text = body.replace("{", "<int64[1] last = {1}> {", 1)
    assert islands_of(model_text, constants) == {"sq", "mean", "v", "d", "inv", "x", "n"}


def test_angles_are_made_in_float32_with_the_product_below_them() -> None:
    body = """(float[B,8] a, int64[T] places) => (float[B,8] y) {
        f = Cast<to=1>(places) c = Unsqueeze(f, axes) angle = MatMul(c, inv) all = Concat<axis=1>(angle, angle)
        cos = Cos(all) h = MatMul(a, w) y = Mul(h, cos)
    }""".replace("{", "<int64[1] axes = {1}> {", 1)
    assert islands_of(body, {"inv": np.ones((1, 4)), "w": W}) == {"f", "c", "angle", "all", "cos"}


def test_a_product_that_feeds_more_than_the_angles_is_left_out() -> None:
    body = "(float[B,8] a) => (float[B,8] y) { h = MatMul(a, w) s = Sin(h) y = MatMul(h, s) }"
    assert islands_of(body, {"w": W}) == {"s"}


def test_mean_pooling_counts_and_divides_in_float32() -> None:
    body = """(float[B,T,8] a, int64[B,T,1] keep) => (float[B,8] y) {
        h = MatMul(a, w) m = Cast<to=1>(keep) x = Mul(h, m) s = ReduceSum<keepdims=0>(x, mid)
        n = ReduceSum<keepdims=0>(m, mid) y = Div(s, n)
    }""".replace("{", "<int64[1] mid = {1}> {", 1)
    assert islands_of(body, {"w": W}) == {"m", "s", "n", "y"}


def test_a_constant_that_float16_would_make_zero_keeps_its_node_in_float32() -> None:
    body = "(float[B,8] a) => (float[B,8] y) { h = MatMul(a, w) e = Add(h, tiny) y = MatMul(e, w) }"
    assert islands_of(body, {"w": W, "tiny": np.array(1e-12)}) == {"e"}
    assert islands_of(body, {"w": W, "tiny": np.array(1e-3)}) == set()


def test_an_embedding_is_float16_although_its_ids_are_no_floats() -> None:
    body = "(int64[B] ids) => (float[B,8] y) { e = Gather(w, ids) y = MatMul(e, w) }"
    assert islands_of(body, {"w": W}) == set()


def test_what_only_rearranges_a_norm_joins_it_so_that_the_cast_comes_last() -> None:
    body = """(float[B,T,8] a) => (float[B,8] y) {
        h = MatMul(a, w) n = LayerNormalization(h, g) c = Gather<axis=1>(n, first) y = MatMul(c, w)
    }""".replace("{", "<int64 first = {0}> {", 1)
    assert islands_of(body, {"w": W, "g": np.ones(8)}) == {"n", "c"}


@pytest.mark.parametrize("opset", [20, 23])
def test_pixels_are_prepared_in_float32_and_convolved_in_float16(opset: int) -> None:
    body = """(float[B,3,8,8] pixels) => (float[B,4,2,2] y) { s = Mul(pixels, one) y = Conv<strides=[4,4]>(s, k) }"""
    assert islands_of(body, {"one": ONE, "k": np.ones((4, 3, 4, 4))}, opset=opset) == {"s"}
