"""Profile ``fp8``: E4M3 numbers as ONNX defines them, in graphs that the rules and TensorRT-RTX's own parser and builder take."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from onnx import TensorProto, helper, numpy_helper

from deploy.backends.opening import open_backend
from deploy.calibration.calibration_cache import CalibrationCache
from deploy.graphs.graph_info import read_info
from deploy.graphs.model_hash import model_sha256
from deploy.graphs.profiles import profile_named
from deploy.graphs.sites import find_sites
from deploy.quantization.float8 import LARGEST, float8_scale, float8_weight
from deploy.quantization.lint import lint
from deploy.quantization.quantize import quantize
from tests.deploy.calibrated import run_literally
from tests.deploy.encoder_graph import EncoderRecipe, feeds
from tests.deploy.graphs.test_float16 import both

GATED = EncoderRecipe(gate="linear", softmax="folded")


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, CalibrationCache]:
    """Float32 and float16 graph of a gated encoder, ranges for the latter."""
    return both(tmp_path_factory.mktemp("graphs"), GATED)


_TINY, _HUGE = float(np.finfo(np.float32).smallest_subnormal), float(np.finfo(np.float32).max)
FINITE = st.one_of(
    st.floats(-1e4, 1e4, width=32),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, -0.0, _TINY, -_TINY, 1e-40, _HUGE, -_HUGE]),
)
SHAPES = npst.array_shapes(min_dims=1, max_dims=3, max_side=6)


@given(npst.arrays(np.float32, SHAPES, elements=FINITE), st.sampled_from([None, 0, -1]))
def test_fp8_keeps_order_sign_and_zero_and_is_off_by_half_a_step_at_most(values: np.ndarray, axis: int | None) -> None:
    axis = None if axis is None else axis % values.ndim
    numbers, scale = float8_weight(values, axis=axis)
    assert (numbers.dtype, numbers.shape) == (ml_dtypes.float8_e4m3fn, values.shape)
    assert (scale > 0).all()
    assert np.isfinite(scale).all()
    assert scale.shape == (() if axis is None else (values.shape[axis],))
    rows = [(values, numbers, scale)]
    if axis is not None:
        places = range(values.shape[axis])
        rows = [(np.take(values, row, axis), np.take(numbers, row, axis), scale[row]) for row in places]
    for exact, eights, step in rows:
        grid = eights.astype(np.float64)
        assert np.isfinite(grid).all()
        assert not grid[exact == 0].any()
        assert (np.diff(grid.ravel()[np.argsort(exact, axis=None)]) >= 0).all()
        assert (grid * np.sign(exact) >= 0).all()
        assert np.abs(grid).max() <= LARGEST
        assert (np.abs(grid * step - exact) <= _half_a_step(exact, float(step)) * (1 + 1e-5)).all()
        if np.abs(exact).max() >= LARGEST * 2.0**-24:  # else the scale is at its floor
            assert np.abs(grid).max() == LARGEST


def _half_a_step(exact: np.ndarray, scale: float) -> np.ndarray:
    """Of the E4M3 grid around each value: 2^(e - 4) for exponent e of at least -6 (three mantissa bits, denormals below)."""
    exponent = np.maximum(np.frexp(np.abs(exact, dtype=np.float64) / scale)[1] - 1, -6)
    half: np.ndarray = np.ldexp(scale, exponent - 4)
    return half


@given(npst.arrays(np.float16, st.integers(1, 40), elements=st.floats(allow_nan=False, allow_infinity=False, width=16)))
def test_scales_of_a_float16_graph_cut_nothing_off(values: np.ndarray) -> None:
    numbers, scale = float8_weight(values, scale_type=np.float16)
    assert scale.dtype == np.float16
    assert 0 < scale < np.inf
    amax = float(np.abs(values).max())
    assert float(scale) * LARGEST >= amax * (1 - 1e-6)
    error = np.abs(numbers.astype(np.float64) * float(scale) - values)
    assert (error <= _half_a_step(values.astype(np.float64), float(scale)) * (1 + 1e-5)).all()


@given(st.one_of(st.floats(0, _HUGE, width=32), st.sampled_from([0.0, _TINY, 1e-40, _HUGE])))
def test_the_scale_of_any_magnitude_is_a_normal_float32_and_grows_with_it(amax: float) -> None:
    scale = np.float32(float8_scale(amax))
    assert np.finfo(np.float32).smallest_normal <= scale < np.inf
    assert float8_scale(amax / 2) <= float8_scale(amax)
    assert amax / float(scale) <= LARGEST * (1 + 1e-6)


@given(npst.arrays(np.float32, st.integers(1, 20), elements=FINITE))
def test_rounding_fp8_twice_changes_nothing(values: np.ndarray) -> None:
    numbers, scale = float8_weight(values)
    again, _ = float8_weight((numbers.astype(np.float32) * scale).astype(np.float32))
    np.testing.assert_array_equal(again.astype(np.float32), numbers.astype(np.float32))


def test_the_numbers_are_those_that_quantize_linear_gives() -> None:
    values = (np.random.default_rng(0).standard_normal(4096) * 3).astype(np.float32)
    numbers, scale = float8_weight(values)
    zero = numpy_helper.from_array(np.zeros((), ml_dtypes.float8_e4m3fn), "zero")
    node = helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["y"])
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4096])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT8E4M3FN, [4096])],
        [zero, numpy_helper.from_array(scale, "scale")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    bound = session.run_with_ort_values(None, {"x": onnxruntime.OrtValue.ortvalue_from_numpy(values)})[0]
    np.testing.assert_array_equal(bound.numpy().view(np.uint8), numbers.view(np.uint8))


def test_the_largest_magnitude_becomes_the_largest_number() -> None:
    numbers, scale = float8_weight(np.array([-7.0, 3.5, 0.0], np.float32))
    assert numbers.astype(float).tolist() == [-LARGEST, LARGEST / 2, 0.0]
    assert float(scale) == pytest.approx(float8_scale(7.0)) == pytest.approx(7.0 / 448)
    with pytest.raises(ValueError, match="not finite"):
        float8_weight(np.array([np.inf], np.float32))


@pytest.mark.parametrize("weights", ["minmax", "per-channel"])
def test_a_float16_graph_gets_the_sites_of_profile_tensorrt_and_is_clean(
    graphs: tuple[Path, Path, CalibrationCache], tmp_path: Path, weights: str
) -> None:
    _, half, cache = graphs
    out = tmp_path / "fp8.onnx"
    summary = quantize(half, cache, out, profile="fp8", weights=weights)  # type: ignore[arg-type]  # both are known
    assert lint(out, "fp8") == []
    assert read_info(out).profile == "fp8"
    model = onnx.load(half)
    wanted, theirs = (find_sites(model, profile_named(name)) for name in ("fp8", "tensorrt"))
    assert [site.tensor for site in wanted.activations] == [site.tensor for site in theirs.activations]
    assert {operation.precision for operation in summary.operations} == {"float", "float8 x float8"}
    scales = [tensor for tensor in onnx.load(out).graph.initializer if tensor.name.endswith("/scale")]
    assert {scale.data_type for scale in scales} == {TensorProto.FLOAT16}


def test_scales_are_the_calibrated_magnitude_over_448(
    graphs: tuple[Path, Path, CalibrationCache], tmp_path: Path
) -> None:
    full, _, cache = graphs
    quantize(full, replace(cache, model_sha256=model_sha256(full)), tmp_path / "fp8.onnx", profile="fp8")
    stored = {tensor.name: tensor for tensor in onnx.load(tmp_path / "fp8.onnx").graph.initializer}
    for site in find_sites(onnx.load(full), profile_named("fp8")).activations:
        ranges = cache.range_of(site.tensor, bits=8, symmetric=True)
        scale = float(numpy_helper.to_array(stored[f"{site.tensor}/scale"]))
        assert scale == pytest.approx(ranges.scale * 127 / 448, rel=1e-6)


def test_results_stay_near_the_float_graph(graphs: tuple[Path, Path, CalibrationCache], tmp_path: Path) -> None:
    full, half, cache = graphs
    quantize(half, cache, tmp_path / "fp8.onnx", profile="fp8")
    inputs = feeds(batch=4, length=9, seed=3)
    expected, found = run_literally(full, inputs)["hidden"], run_literally(tmp_path / "fp8.onnx", inputs)["hidden"]
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    # Three mantissa bits in a dozen products in a row.
    assert 1e-4 < error < 0.05


def test_onnx_runtime_computes_it_as_written_and_says_so_and_openvino_refuses(
    graphs: tuple[Path, Path, CalibrationCache], tmp_path: Path
) -> None:
    _, half, cache = graphs
    out, inputs = tmp_path / "fp8.onnx", feeds(batch=2, length=9, seed=3)
    quantize(half, cache, out, profile="fp8")
    with open_backend("onnxruntime", out, threads=1) as backend:
        assert backend.precision == "float8 grid in float32"
        expected = run_literally(out, inputs)["hidden"]
        np.testing.assert_allclose(backend.infer(inputs)["hidden"], expected, atol=1e-2 * np.abs(expected).max())
    with pytest.raises(ValueError, match="is in FP8, which OpenVINO does not compute as written"):
        open_backend("openvino", out)


def test_what_has_no_place_for_fp8_is_refused(graphs: tuple[Path, Path, CalibrationCache], tmp_path: Path) -> None:
    full, half, cache = graphs
    with pytest.raises(ValueError, match="'mse' searches clips for integers"):
        quantize(half, cache, tmp_path / "out.onnx", profile="fp8", weights="mse")
    old = tmp_path / "old.onnx"
    model = onnx.load(full)
    model.opset_import[0].version = 18
    onnx.save(model, old)
    with pytest.raises(ValueError, match="FP8 needs opset 19 or newer; the graph has 18"):
        quantize(old, replace(cache, model_sha256=model_sha256(old)), tmp_path / "out.onnx", profile="fp8")
    assert not (tmp_path / "out.onnx").exists()


def test_integers_in_an_fp8_graph_are_found(graphs: tuple[Path, Path, CalibrationCache], tmp_path: Path) -> None:
    _, half, cache = graphs
    quantize(half, cache, tmp_path / "int8.onnx", profile="tensorrt")
    rules = {finding.rule for finding in lint(tmp_path / "int8.onnx", "fp8")}
    assert {"QF009", "QF014"} <= rules
