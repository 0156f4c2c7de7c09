"""``reduce_range``: graphs whose integers are exact in every kernel, at hardly any cost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from deploy.backends.exact_weights import may_saturate
from deploy.backends.onnxruntime_form import OnnxRuntimeForm
from deploy.backends.opening import open_backend
from deploy.calibration.calibrate import calibrate
from deploy.quantization.bits import Bits
from deploy.quantization.pair_sums import fit_in_pairs, quantized_in_pairs
from deploy.quantization.quantize import quantize
from deploy.quantization.stored_weights import WeightRanges
from deploy.quantization.weights import quantize_weight
from tests.deploy.calibrated import calibrated, run_literally
from tests.deploy.encoder_graph import EncoderRecipe, feeds
from tests.deploy.vit_graph import images, vit


@pytest.mark.parametrize("weights", ["minmax", "mse", "per-channel"])
@pytest.mark.parametrize("profile", ["tensorrt", "ort"])
def test_no_sum_of_the_graph_can_saturate_and_it_stays_close_to_float(
    tmp_path: Path, profile: str, weights: WeightRanges
) -> None:
    path, cache = calibrated(tmp_path, EncoderRecipe(gate="mlp", num_layers=2))
    errors = []
    for reduce_range in (False, True):
        out = tmp_path / f"{reduce_range}.onnx"
        quantize(path, cache, out, profile=profile, weights=weights, reduce_range=reduce_range)
        error = run_literally(out, feeds())["hidden"] - run_literally(path, feeds())["hidden"]
        errors.append(float(np.sqrt(np.mean(np.square(error)))))
    assert may_saturate(onnx.load(tmp_path / "False.onnx"))
    reduced = onnx.load(tmp_path / "True.onnx")
    assert not may_saturate(reduced)
    assert errors[1] < 2 * errors[0]
    OnnxRuntimeForm(saturates=True).rewrite(reduced)
    weights_of_layers = [
        t for t in reduced.graph.initializer if t.data_type == onnx.TensorProto.INT8 and len(t.dims) == 2
    ]
    assert len(weights_of_layers) == 12  # all kept signed, for the fastest kernel


def test_openvino_computes_such_a_graph_in_integers_on_every_processor(tmp_path: Path) -> None:
    path, cache = calibrated(tmp_path)
    quantize(path, cache, tmp_path / "q.onnx", reduce_range=True)
    literal = run_literally(tmp_path / "q.onnx", feeds())["hidden"]
    for backend in ("openvino", "onnxruntime"):
        with open_backend(backend, tmp_path / "q.onnx", threads=1) as opened:
            output = opened.infer(feeds())["hidden"]
            assert opened.precision == "int8 + float32"
            assert not opened.is_simulated
        assert np.sqrt(np.mean(np.square(output - literal))) < 0.02


@pytest.mark.parametrize("backend", ["openvino", "onnxruntime"])
@pytest.mark.parametrize("weights", [(64, 64), (127, 1), (28, 100), (-127, -1), (127, -127)])
def test_the_largest_pairs_that_fit_are_exact_in_integer_kernels(
    tmp_path: Path, backend: str, weights: tuple[int, int]
) -> None:
    model = onnx.parser.parse_model("""
    <ir_version: 9, opset_import: ["" : 20]>
    g (float[B, T, 96] x) => (float[B, T, 32] y) <float one = {1.0}, uint8 zero = {0}, int8 none = {0}> {
        q = QuantizeLinear(x, one, zero)
        d = DequantizeLinear(q, one, zero)
        w = DequantizeLinear(weight, one, none)
        y = MatMul(d, w)
    }
    """)
    matrix = np.tile(np.array(weights, np.int8)[:, None], (48, 32))
    model.graph.initializer.append(numpy_helper.from_array(matrix, "weight"))
    onnx.save(model, tmp_path / "m.onnx")
    with open_backend(backend, tmp_path / "m.onnx", threads=1) as opened:
        assert not opened.is_simulated
        for shape in [(1, 1), (2, 33)]:
            output = opened.infer({"x": np.full((*shape, 96), 255, np.float32)})["y"]
            assert np.unique(output).tolist() == [255.0 * sum(weights) * 48]


def test_convolutions_get_seven_bits_and_tables_keep_eight(tmp_path: Path) -> None:
    path = tmp_path / "vit.onnx"
    onnx.save(vit(), path)
    cache = calibrate(path, [images()], method="minmax", data={"kind": "test"}, seed=0, threads=1)
    quantize(path, cache, tmp_path / "q.onnx", reduce_range=True)
    model = onnx.load(tmp_path / "q.onnx")
    largest = {
        tensor.name: int(np.abs(numpy_helper.to_array(tensor).astype(int)).max())
        for tensor in model.graph.initializer
        if tensor.data_type == onnx.TensorProto.INT8 and len(tensor.dims) > 1
    }
    convolutions = [n.input[1].removesuffix("/dequantized") for n in model.graph.node if n.op_type == "Conv"]
    assert largest[f"{convolutions[0]}/quantized"] == 63
    assert max(largest.values()) > 64
    assert not may_saturate(model)


@pytest.mark.parametrize("axis", [None, 1])
def test_the_scale_is_the_best_of_those_tried(axis: int | None) -> None:
    weight = np.random.default_rng(0).standard_normal((64, 8)).astype(np.float32)
    plain, scale = quantize_weight(weight, axis=axis)
    integers, chosen = quantized_in_pairs(weight, scale)
    assert not fit_in_pairs(plain)
    assert fit_in_pairs(integers)
    assert chosen.shape == scale.shape
    assert (chosen >= scale).all()
    seven_bits = np.clip(np.rint(weight / (2 * scale)), -64, 64) * 2 * scale
    error, coarser = (np.square(values - weight).sum(axis=0) for values in (integers * chosen, seven_bits))
    assert (error <= coarser).all() if axis else error.sum() <= coarser.sum()


@pytest.mark.parametrize(("profile", "bits"), [("fp8", "W8A8"), ("paper", "W6A8"), ("paper", "W16A8")])
def test_it_is_refused_where_it_has_no_effect(tmp_path: Path, profile: str, bits: str) -> None:
    path, cache = calibrated(tmp_path)
    with pytest.raises(ValueError, match="a reduced range is for "):
        quantize(path, cache, tmp_path / "q.onnx", profile=profile, bits=Bits.parse(bits), reduce_range=True)
    assert not (tmp_path / "q.onnx").exists()
