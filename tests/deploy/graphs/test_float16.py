"""Integers in a float16 graph: float16 scales, ranges of the float32 graph, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from deploy.calibration.calibrate import calibrate
from deploy.calibration.calibration_cache import CalibrationCache
from deploy.graphs.float16 import calibrated_sha256
from deploy.graphs.graph_info import GraphInfo, read_info
from deploy.graphs.model_hash import model_sha256
from deploy.quantization.lint import lint
from deploy.quantization.quantize import quantize
from deploy.quantization.stored_weights import WeightRanges
from export.graph_files import to_proto
from export.half_precision import half_graph
from tests.deploy.calibrated import calibrated, run_literally
from tests.deploy.encoder_graph import EncoderRecipe, feeds


def half_beside(path: Path) -> Path:
    """The float16 form of a float32 graph on disk."""
    proto = to_proto(ir.from_proto(onnx.load(path)))
    onnx.save(proto, path)
    half = half_graph(proto, GraphInfo.read(proto, name="encoder"))
    out = path.with_name("model.fp16.onnx")
    onnx.save(half, out)
    return out


def both(folder: Path, recipe: EncoderRecipe | None = None) -> tuple[Path, Path, CalibrationCache]:
    """Float32 graph, float16 graph, ranges measured on the former."""
    path, cache = calibrated(folder, recipe)
    half = half_beside(path)
    return path, half, replace(cache, model_sha256=calibrated_sha256(half))


RECIPES = [
    EncoderRecipe(gate="mlp"),
    EncoderRecipe(softmax="folded", gate="linear"),
    EncoderRecipe(softmax="literal", head=True),
    EncoderRecipe(softmax="padded", gelu="erf"),
]


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
@pytest.mark.parametrize("weights", ["mse", "per-channel"])
def test_scales_are_float16_and_the_graph_is_clean(
    tmp_path: Path, recipe: EncoderRecipe, weights: WeightRanges
) -> None:
    path, half, cache = both(tmp_path, recipe)
    out, reference = tmp_path / "int8.onnx", tmp_path / "int8.float32.onnx"
    summary = quantize(half, cache, out, weights=weights)
    expected = quantize(path, replace(cache, model_sha256=model_sha256(path)), reference, weights=weights)
    assert (summary.activations, summary.weights) == (expected.activations, expected.weights)
    assert [row.precision for row in summary.operations] == [row.precision for row in expected.operations]
    graph = onnx.load(out).graph
    scales = [tensor for tensor in graph.initializer if tensor.name.endswith("/scale")]
    assert {tensor.data_type for tensor in scales} == {onnx.TensorProto.FLOAT16}
    onnx.checker.check_model(out, full_check=True)
    assert lint(out, "tensorrt") == []


def test_integers_in_float16_and_in_float32_give_nearly_the_same(tmp_path: Path) -> None:
    """Rounding to float16 may move a value to the next step of a tensor, so the tolerance is one of a few hundred steps."""
    path, half, cache = both(tmp_path)
    inputs = feeds(batch=4, length=9)
    outputs = []
    for source in (path, half):
        out = source.with_suffix(".int8.onnx")
        quantize(source, cache, out, allow_stale=True)
        outputs.append(run_literally(out, inputs)["hidden"])
    float_output = run_literally(path, inputs)["hidden"]
    error, between = np.abs(outputs[0] - float_output), np.abs(outputs[0] - outputs[1])
    assert between.mean() < error.mean()
    assert between.max() < 0.05 * np.abs(float_output).max()


def test_stored_scales_are_those_of_the_cache_rounded_up(tmp_path: Path) -> None:
    _, half, cache = both(tmp_path)
    out = tmp_path / "int8.onnx"
    quantize(half, cache, out)
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(out).graph.initializer}
    compared = 0
    for name, array in stored.items():
        tensor = name.removesuffix("/scale")
        if name.endswith("/scale") and tensor in cache.tensors:
            exact = cache.range_of(tensor).scale
            assert exact <= float(array) <= exact * (1 + 2**-10)
            compared += 1
    assert compared == 4


def test_the_graph_says_what_it_is_and_which_graph_was_calibrated(tmp_path: Path) -> None:
    path, half, cache = both(tmp_path)
    info = read_info(half)
    assert (info.dtype, info.float32_sha256) == ("float16", model_sha256(path))
    assert calibrated_sha256(half) == calibrated_sha256(path) == model_sha256(path)
    out = tmp_path / "int8.onnx"
    quantize(half, cache, out)
    made = read_info(out)
    assert (made.dtype, made.profile, made.float_sha256) == ("float16", "tensorrt", model_sha256(half))


def test_ranges_of_another_graph_are_refused(tmp_path: Path) -> None:
    _, half, cache = both(tmp_path)
    with pytest.raises(ValueError, match=r"model_sha256 is .* there and .* here"):
        quantize(half, replace(cache, model_sha256="0" * 64), tmp_path / "int8.onnx")
    with pytest.raises(ValueError, match=r"model_sha256 is .* there and .* here"):
        quantize(half, replace(cache, model_sha256=model_sha256(half)), tmp_path / "int8.onnx")


def test_a_float16_graph_is_not_calibrated_itself(tmp_path: Path) -> None:
    _, half, _ = both(tmp_path)
    with pytest.raises(ValueError, match="is a float16 graph; calibrate the float32 graph"):
        calibrate(half, [feeds()], method="minmax", data={"kind": "test"}, seed=0)


@pytest.mark.parametrize("profile", ["ort", "paper"])
def test_other_profiles_want_the_float32_graph(tmp_path: Path, profile: str) -> None:
    _, half, cache = both(tmp_path)
    with pytest.raises(ValueError, match=f"for profile 'tensorrt' only; quantize the float32 graph for '{profile}'"):
        quantize(half, cache, tmp_path / "int8.onnx", profile=profile)


def test_an_opset_without_float16_scales_is_refused(tmp_path: Path) -> None:
    _, half, cache = both(tmp_path)
    model = onnx.load(half)
    model.opset_import[0].version = 18
    onnx.save(model, half)
    with pytest.raises(ValueError, match="opset 18, in which scales cannot be float16; export with 19 or newer"):
        quantize(half, cache, tmp_path / "int8.onnx")


@pytest.mark.parametrize("profile", ["tensorrt", "fp8"])
def test_a_range_that_float16_has_no_scale_for_is_refused(tmp_path: Path, profile: str) -> None:
    _, half, cache = both(tmp_path)
    cache.tensors["act_0"].high = 1e8
    with pytest.raises(ValueError, match=r"tensor 'act_0' needs a scale of .*; float16 ends at 65504"):
        quantize(half, cache, tmp_path / "q.onnx", profile=profile)
    assert not (tmp_path / "q.onnx").exists()
