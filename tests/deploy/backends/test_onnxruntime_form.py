"""What ONNX Runtime loads computes what the file says, in integers, with one operator per linear layer and no saturation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from deploy.backends.exact_weights import use_exact_weights
from deploy.backends.integer_products import OPERATOR, use_integer_products
from deploy.backends.onnxruntime_form import OnnxRuntimeForm
from deploy.backends.opening import open_backend
from deploy.quantization.stored_weights import WeightRanges
from tests.deploy.calibrated import quantized, run_literally
from tests.deploy.encoder_graph import EncoderRecipe, feeds

LINEAR = """
<ir_version: 9, opset_import: ["" : 20]>
g (float[B, T, 6] x) => (float[B, T, 4] y%EXTRA%)
<float s = {0.5}, uint8 z = {128}, float ws = {0.25}, int8 wz = {0}, float[4] bias = {1.0, 2.0, 3.0, 4.0}> {
    q = QuantizeLinear(x, s, z)
    d = DequantizeLinear(q, s, z)
    w = DequantizeLinear(weight, ws, wz)
    p = MatMul(d, w)
    y = Add(%SUM%)
}
"""


def linear(weight: np.ndarray, *, sum_: str = "p, bias", extra: str = "") -> onnx.ModelProto:
    model = onnx.parser.parse_model(LINEAR.replace("%SUM%", sum_).replace("%EXTRA%", extra))
    model.graph.initializer.append(numpy_helper.from_array(weight, "weight"))
    return model


def kinds(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


@pytest.mark.parametrize("sum_", ["p, bias", "bias, p"])
def test_a_linear_layer_becomes_one_operator_with_its_bias(sum_: str) -> None:
    model = linear(np.ones((6, 4), np.int8), sum_=sum_)
    assert use_integer_products(model) == 1
    assert kinds(model) == ["QuantizeLinear", OPERATOR]
    assert list(model.graph.node[1].input) == ["q", "weight", "s", "ws", "z", "wz", "bias"]
    assert list(model.graph.node[1].output) == ["y"]


def test_the_bias_keeps_its_place_where_a_weight_has_no_zero_point() -> None:
    model = linear(np.ones((6, 4), np.int8))
    del model.graph.node[2].input[2]
    assert use_integer_products(model) == 1
    assert list(model.graph.node[1].input) == ["q", "weight", "s", "ws", "z", "", "bias"]


def test_a_sum_that_others_read_and_a_bias_of_another_shape_stay_outside() -> None:
    read_twice = linear(np.ones((6, 4), np.int8), extra=", float[B, T, 4] p")
    assert use_integer_products(read_twice) == 1
    assert kinds(read_twice) == ["QuantizeLinear", OPERATOR, "Add"]
    other = linear(np.ones((6, 4), np.int8))
    next(entry for entry in other.graph.initializer if entry.name == "bias").CopyFrom(
        numpy_helper.from_array(np.ones((1, 1), np.float32), "bias")
    )
    assert use_integer_products(other) == 1
    assert kinds(other) == ["QuantizeLinear", OPERATOR, "Add"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("z", np.array(0, np.int8)),
        ("s", np.full(6, 0.5, np.float32)),
        ("ws", np.full(6, 0.25, np.float32)),
        ("weight", np.ones((1, 6, 4), np.int8)),
        ("ws", np.array(0.25, np.float16)),
    ],
)
def test_other_products_stay_as_they_are(name: str, value: np.ndarray) -> None:
    model = linear(np.ones((6, 4), np.int8))
    next(entry for entry in model.graph.initializer if entry.name == name).CopyFrom(
        numpy_helper.from_array(value, name)
    )
    before = model.SerializeToString(deterministic=True)
    assert use_integer_products(model) == 0
    assert model.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("profile", ["tensorrt", "ort", "paper"])
@pytest.mark.parametrize("weights", ["minmax", "per-channel"])
def test_every_linear_layer_of_an_encoder_is_taken_and_nothing_is_left_to_saturate(
    tmp_path: Path, profile: str, weights: WeightRanges
) -> None:
    path = quantized(tmp_path, profile, EncoderRecipe(gate="linear", num_layers=2), weights=weights)
    model = onnx.load(path)
    form = OnnxRuntimeForm(saturates=True)
    assert form.rewrite(model)
    onnx.checker.check_model(model)
    assert kinds(model).count(OPERATOR) == (14 if profile == "paper" else 12)
    assert not form.needs_exact_kernels
    with open_backend("onnxruntime", path, threads=1) as opened:
        output = opened.infer(feeds())["hidden"]
    assert np.sqrt(np.mean(np.square(output - run_literally(path, feeds())["hidden"]))) < 0.02


@pytest.mark.parametrize("largest", [64, 65, 127, -128])
@pytest.mark.parametrize("rows", [6, 7])
def test_integers_are_exact_at_the_end_of_every_range(tmp_path: Path, largest: int, rows: int) -> None:
    """All inputs at 255 and all weights at their largest: pairs of 65 x 255 leave 16 bits, pairs of 64 x 255 do not."""
    rows *= 16
    model = linear(np.full((rows, 4), largest, np.int8))
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_value = rows
    onnx.save(model, tmp_path / "m.onnx")
    with open_backend("onnxruntime", tmp_path / "m.onnx", threads=1) as opened:
        output = opened.infer({"x": np.full((2, 3, rows), 63.5, np.float32)})["y"]
    expected = np.float32(63.5 * 0.25 * largest * rows) + np.array([1, 2, 3, 4], np.float32)
    np.testing.assert_array_equal(output, np.broadcast_to(expected, (2, 3, 4)))


def test_pairs_that_cannot_saturate_keep_the_fast_kernel_and_others_do_not() -> None:
    fitting = np.tile(np.array([[100], [28]], np.int8), (3, 4))
    safe, unsafe = linear(fitting), linear(np.tile(np.array([[100], [29]], np.int8), (3, 4)))
    for model in (safe, unsafe):
        use_integer_products(model)
        assert use_exact_weights(model).are_safe
    types = [next(t for t in model.graph.initializer if t.name == "weight").data_type for model in (safe, unsafe)]
    assert types == [onnx.TensorProto.INT8, onnx.TensorProto.UINT8]
    assert next(t for t in safe.graph.initializer if t.name == "weight").raw_data == fitting.tobytes()


@pytest.mark.parametrize("zero", [None, 0, 7])
@pytest.mark.parametrize("is_node", [False, True])
@pytest.mark.parametrize("is_alone", [False, True])
def test_zero_points_are_kept_however_they_are_given(
    tmp_path: Path, zero: int | None, is_node: bool, is_alone: bool
) -> None:
    """A weight that becomes unsigned takes its own zero point along; one that is no initializer cannot be seen."""
    model = linear(np.full((6, 4), 100, np.int8))
    dequantized = model.graph.node[2]
    stored = next(entry for entry in model.graph.initializer if entry.name == "wz")
    if zero is None:
        del dequantized.input[2]
    else:
        stored.CopyFrom(numpy_helper.from_array(np.array(zero, np.int8), "wz"))
        if is_node:
            model.graph.node.insert(2, onnx.helper.make_node("Constant", [], ["wz"], value=stored))
            model.graph.initializer.remove(stored)
    if is_alone:  # a reader that no product takes over
        model.graph.node[-2].op_type = "Gemm"
        model.graph.input[0].type.tensor_type.shape.dim.pop(0)
        model.graph.output[0].type.tensor_type.shape.dim.pop(0)
    x = np.full((3, 6) if is_alone else (2, 3, 6), 63.5, np.float32)
    onnx.save(model, tmp_path / "m.onnx")
    with open_backend("onnxruntime", tmp_path / "m.onnx", threads=1) as opened:
        output = opened.infer({"x": x})["y"]
    expected = np.float32(63.5 * 0.25 * (100 - (zero or 0)) * 6) + np.array([1, 2, 3, 4], np.float32)
    np.testing.assert_array_equal(output, np.broadcast_to(expected, output.shape))
    rewritten = onnx.load(tmp_path / "m.onnx")
    form = OnnxRuntimeForm(saturates=True)
    form.rewrite(rewritten)
    assert form.needs_exact_kernels is (is_node and zero is not None)


def test_what_cannot_be_seen_is_left_to_the_runtime(tmp_path: Path) -> None:
    outside = linear(np.full((6, 4), 127, np.int8))
    onnx.save(outside, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    outside = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    made = linear(np.full((6, 4), 127, np.int8))
    made.graph.node[2].input[0] = "made"
    made.graph.node.insert(2, onnx.helper.make_node("Identity", ["weight"], ["made"]))
    for model in (outside, made):
        use_integer_products(model)
        assert not use_exact_weights(model).are_safe


def test_a_convolution_and_a_layer_that_ends_in_integers_are_exact(tmp_path: Path) -> None:
    """Operators that the runtime makes itself of other pairs: the convolution, and Gemm."""
    model = onnx.parser.parse_model("""
    <ir_version: 9, opset_import: ["" : 20]>
    g (float[B, 8, 4, 4] x) => (float[B, 8, 3, 3] y, float[B, 4] z)
    <float s = {1.0}, uint8 zero = {0}, int8 none = {0}, float big = {8192.0}, int64[2] flat = {0, -1}> {
        q = QuantizeLinear(x, s, zero)
        d = DequantizeLinear(q, s, zero)
        w = DequantizeLinear(weight, s, none)
        c = Conv(d, w)
        r = QuantizeLinear(c, big, zero)
        y = DequantizeLinear(r, big, zero)
        f = Reshape(d, flat)
        m = DequantizeLinear(matrix, s, none)
        z = Gemm(f, m)
    }
    """)
    model.graph.initializer.append(numpy_helper.from_array(np.full((8, 8, 2, 2), 127, np.int8), "weight"))
    model.graph.initializer.append(numpy_helper.from_array(np.full((128, 4), 127, np.int8), "matrix"))
    onnx.save(model, tmp_path / "m.onnx")
    inputs = {"x": np.full((2, 8, 4, 4), 255, np.float32)}
    with open_backend("onnxruntime", tmp_path / "m.onnx", threads=1) as opened:
        outputs = opened.infer(inputs)
    assert np.unique(outputs["y"]).tolist() == [round(255 * 127 * 32 / 8192) * 8192]
    assert np.unique(outputs["z"]).tolist() == [255 * 127 * 128]


def test_the_flag_of_slower_kernels_is_kept_where_the_processor_is_not_known_to_saturate() -> None:
    form = OnnxRuntimeForm(saturates=False)
    form.rewrite(linear(np.full((6, 4), 127, np.int8)))
    assert form.needs_exact_kernels
