"""Q/DQ graphs: structure by profile, arithmetic against an independent reference, exclusions, refusals."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from deploy.graphs.graph_info import GraphInfo, read_info
from deploy.graphs.model_hash import model_sha256
from deploy.graphs.site_choice import SiteChoice
from deploy.quantization.quantize import quantize
from deploy.quantization.stored_weights import WeightRanges
from deploy.quantization.weights import quantize_weight
from tests.deploy.calibrated import calibrated, quantized, run_literally
from tests.deploy.encoder_graph import EncoderRecipe, encoder, feeds

PROFILES = ["tensorrt", "ort", "paper"]


def _constants(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def _count(model: onnx.ModelProto, op_type: str) -> int:
    return Counter(node.op_type for node in model.graph.node)[op_type]


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("softmax", ["vanilla", "folded", "literal"])
def test_the_graph_is_valid_and_close_to_the_float_one(tmp_path: Path, profile: str, softmax: str) -> None:
    recipe = EncoderRecipe(softmax=softmax, gate="mlp", num_layers=2)
    out = quantized(tmp_path, profile, recipe)
    onnx.checker.check_model(onnx.load(out), full_check=True)
    exact = run_literally(tmp_path / "model.onnx", feeds())["hidden"]
    error = run_literally(out, feeds())["hidden"] - exact
    # Two layers of 8-bit noise on LayerNorm outputs of unit variance; a wrong scale or site gives errors near 1.
    assert np.sqrt(np.mean(error**2)) < 0.12 * np.sqrt(np.mean(exact**2))
    assert np.abs(error).max() > 0


@pytest.mark.parametrize("profile", PROFILES)
def test_the_graph_computes_what_onnx_defines(tmp_path: Path, profile: str) -> None:
    out = quantized(tmp_path, profile, EncoderRecipe(gate="linear", softmax="folded"))
    (reference,) = ReferenceEvaluator(onnx.load(out)).run(None, feeds())
    literal = run_literally(out, feeds())["hidden"]
    # Both round half to even, but sum in another order: a value on the edge of a step may fall on either side.
    assert np.mean(np.abs(reference - literal) > 1e-3) < 0.05
    assert np.abs(reference - literal).max() < 0.15


def test_tensorrt_has_int8_activations_with_zero_point_zero(tmp_path: Path) -> None:
    model = onnx.load(quantized(tmp_path, "tensorrt"))
    constants = _constants(model)
    points = [constants[node.input[2]] for node in model.graph.node if node.op_type.endswith("eLinear")]
    assert {(point.dtype, int(np.abs(point).max())) for point in points} == {(np.dtype(np.int8), 0)}


@pytest.mark.parametrize("profile", ["ort", "paper"])
def test_ort_and_paper_have_uint8_activations_and_int8_weights(tmp_path: Path, profile: str) -> None:
    model = onnx.load(quantized(tmp_path, profile))
    constants = _constants(model)
    for node in model.graph.node:
        if node.op_type == "QuantizeLinear":
            assert constants[node.input[2]].dtype == np.uint8
        if node.op_type == "DequantizeLinear" and node.input[0] in constants:
            assert constants[node.input[0]].dtype == np.int8
            assert not constants[node.input[2]].any()


def test_query_key_and_value_read_one_pair(tmp_path: Path) -> None:
    model = onnx.load(quantized(tmp_path, "tensorrt"))
    readers = [node.output[0] for node in model.graph.node if "x/dequantized" in node.input]
    assert readers == ["qm_0", "km_0", "vm_0"]
    assert _count(model, "QuantizeLinear") == 4
    residual = next(node for node in model.graph.node if node.output[0] == "r1_0")
    assert list(residual.input) == ["o_0", "x"]


def test_nothing_sits_on_a_product_or_between_product_and_gelu(tmp_path: Path) -> None:
    model = onnx.load(quantized(tmp_path, "tensorrt"))
    made_by = {name: node.op_type for node in model.graph.node for name in node.output}
    sources = {made_by[node.input[0]] for node in model.graph.node if node.op_type == "QuantizeLinear"}
    assert sources == {"LayerNormalization", "Identity", "Gelu"}


def test_weights_are_stored_as_integers_only(tmp_path: Path) -> None:
    out = quantized(tmp_path, "tensorrt")
    constants = _constants(onnx.load(out))
    assert "w0_qw" not in constants
    integers, scale = quantize_weight(_constants(encoder())["w0_qw"])
    assert np.array_equal(constants["w0_qw/quantized"], integers)
    assert constants["w0_qw/scale"] == scale


def test_per_channel_weights_have_one_scale_per_output(tmp_path: Path) -> None:
    path, cache = calibrated(tmp_path)
    quantize(path, cache, tmp_path / "q.onnx", weights="per-channel")
    model = onnx.load(tmp_path / "q.onnx")
    assert _constants(model)["w0_w1/scale"].shape == (64,)
    node = next(node for node in model.graph.node if node.name == "w0_w1/DequantizeLinear")
    assert [attribute.i for attribute in node.attribute if attribute.name == "axis"] == [1]
    assert np.isfinite(run_literally(tmp_path / "q.onnx", feeds())["hidden"]).all()


def test_mse_weights_have_no_larger_scale(tmp_path: Path) -> None:
    path, cache = calibrated(tmp_path)
    scales = {}
    methods: tuple[WeightRanges, ...] = ("minmax", "mse")
    for weights in methods:
        quantize(path, cache, tmp_path / f"{weights}.onnx", weights=weights)
        scales[weights] = float(_constants(onnx.load(tmp_path / f"{weights}.onnx"))["w0_w1/scale"])
    assert scales["mse"] <= scales["minmax"]


def test_tables_are_looked_up_in_integers(tmp_path: Path) -> None:
    model = onnx.load(quantized(tmp_path, "paper"))
    gathers = [node for node in model.graph.node if node.op_type == "Gather" and node.output[0] != "length"]
    assert {node.input[0] for node in gathers} == {
        "word_table/quantized",
        "type_table/quantized",
        "position_table/quantized",
    }
    literal = run_literally(tmp_path / "paper.onnx", feeds())["hidden"]
    assert np.isfinite(literal).all()


def test_a_table_tied_to_a_float_head_is_kept_for_the_head(tmp_path: Path) -> None:
    table = np.random.default_rng(3).standard_normal((50, 32)).astype(np.float32)
    model = encoder(EncoderRecipe(head=True, weights={"word_table": table, "w_head": table.T}))
    head = next(node for node in model.graph.node if node.input[:2] == ["hidden", "w_head"])
    head.input[1] = "turned"
    turn = onnx.helper.make_node("Transpose", ["word_table"], ["turned"], name="turn")
    model.graph.node.insert(0, turn)
    path, cache = tmp_path / "tied.onnx", calibrated(tmp_path, EncoderRecipe(head=True))[1]
    onnx.save(model, path)
    for profile in PROFILES:
        quantize(path, cache, tmp_path / f"{profile}.onnx", profile=profile, allow_stale=True)
        constants = _constants(onnx.load(tmp_path / f"{profile}.onnx"))
        assert np.array_equal(constants["word_table"], table)
        assert ("word_table/quantized" in constants) == (profile == "paper")


def test_one_weight_shared_by_two_layers_is_stored_once(tmp_path: Path) -> None:
    model = encoder()
    next(node for node in model.graph.node if node.output[0] == "km_0").input[1] = "w0_qw"
    path, cache = tmp_path / "shared.onnx", calibrated(tmp_path)[1]
    onnx.save(model, path)
    quantize(path, cache, tmp_path / "q.onnx", allow_stale=True)
    result = onnx.load(tmp_path / "q.onnx")
    readers = [node.output[0] for node in result.graph.node if "w0_qw/dequantized" in node.input]
    assert readers == ["qm_0", "km_0"]


def test_excluding_a_layer_keeps_both_of_its_sides_float(tmp_path: Path) -> None:
    path, cache = calibrated(tmp_path)
    name = next(node.name for node in encoder().graph.node if node.output[0] == "f2m_0")
    summary = quantize(
        path,
        cache,
        tmp_path / "q.onnx",
        choice=SiteChoice(
            exclude=(
                name,
                "w0_kw",
            )
        ),
    )
    model = onnx.load(tmp_path / "q.onnx")
    by_output = {node.output[0]: list(node.input) for node in model.graph.node}
    assert by_output["f2m_0"] == ["act_0", "w0_w2"]
    assert by_output["km_0"] == ["x", "w0_kw"]
    assert by_output["qm_0"] == ["x/dequantized", "w0_qw/dequantized"]
    assert summary.float_linears[name] == "excluded by the user"
    assert Counter(op.precision for op in summary.operations) == {"int8 x int8": 4, "float": 4}


def test_excluding_a_tensor_keeps_the_layers_that_read_it_float(tmp_path: Path) -> None:
    path, cache = calibrated(tmp_path)
    quantize(path, cache, tmp_path / "q.onnx", choice=SiteChoice(exclude=("x",)))
    by_output = {node.output[0]: list(node.input) for node in onnx.load(tmp_path / "q.onnx").graph.node}
    assert by_output["qm_0"] == ["x", "w0_qw"]
    assert by_output["om_0"] == ["ctx_0/dequantized", "w0_ow/dequantized"]


def test_a_pattern_that_matches_nothing_is_refused(tmp_path: Path) -> None:
    path, cache = calibrated(tmp_path)
    with pytest.raises(
        ValueError, match=r"exclude pattern 'layer\.7\*' matches nothing; \d+ names exist, such as act_0"
    ):
        quantize(path, cache, tmp_path / "q.onnx", choice=SiteChoice(exclude=("layer.7*",)))
    assert not (tmp_path / "q.onnx").exists()


def test_metadata_says_what_the_graph_was_made_from(tmp_path: Path) -> None:
    path, cache = calibrated(tmp_path)
    quantize(path, replace(cache, not_for_accuracy=True), tmp_path / "q.onnx", profile="paper")
    info = read_info(tmp_path / "q.onnx")
    assert (info.profile, info.float_sha256, info.not_for_accuracy) == ("paper", model_sha256(path), True)


def test_the_tokenizer_travels_along(tmp_path: Path) -> None:
    path, cache = calibrated(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": "x"}))
    quantize(path, cache, tmp_path / "elsewhere" / "q.onnx")
    assert (tmp_path / "elsewhere" / "tokenizer.json").read_text() == json.dumps({"model": "x"})


def test_quantizing_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    path, cache = calibrated(tmp_path)
    for name in ("a.onnx", "b.onnx"):
        quantize(path, cache, tmp_path / name, weights="mse")
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_an_existing_output_stays_without_force(tmp_path: Path) -> None:
    path, cache = calibrated(tmp_path)
    (tmp_path / "q.onnx").write_text("mine")
    with pytest.raises(FileExistsError, match="--force"):
        quantize(path, cache, tmp_path / "q.onnx")
    assert (tmp_path / "q.onnx").read_text() == "mine"
    quantize(path, cache, tmp_path / "q.onnx", force=True)
    assert read_info(tmp_path / "q.onnx").profile == "tensorrt"


def test_a_cache_of_another_model_is_refused(tmp_path: Path) -> None:
    _, cache = calibrated(tmp_path)
    other = tmp_path / "other.onnx"
    onnx.save(encoder(EncoderRecipe(seed=1)), other)
    with pytest.raises(ValueError, match="model_sha256"):
        quantize(other, cache, tmp_path / "q.onnx")
    quantize(other, cache, tmp_path / "q.onnx", allow_stale=True)


def test_a_quantized_graph_is_not_quantized_again(tmp_path: Path) -> None:
    out = quantized(tmp_path, "tensorrt")
    _, cache = calibrated(tmp_path)
    with pytest.raises(ValueError, match="is quantized already; give the float graph"):
        quantize(out, cache, tmp_path / "again.onnx")


def test_a_tensor_without_ranges_is_named(tmp_path: Path) -> None:
    path, cache = calibrated(tmp_path)
    short = replace(cache, tensors={name: values for name, values in cache.tensors.items() if name != "act_0"})
    with pytest.raises(ValueError, match="tensor 'act_0' was not calibrated"):
        quantize(path, short, tmp_path / "q.onnx")


def test_a_weight_that_is_not_finite_is_named(tmp_path: Path) -> None:
    path, cache = calibrated(tmp_path)
    broken = np.full((32, 32), np.nan, np.float32)
    onnx.save(encoder(EncoderRecipe(weights={"w0_ow": broken})), path)
    with pytest.raises(ValueError, match="weight 'w0_ow' holds values that are not finite"):
        quantize(path, cache, tmp_path / "q.onnx", allow_stale=True)


def test_a_graph_without_metadata_is_refused(tmp_path: Path) -> None:
    path, cache = calibrated(tmp_path)
    model = encoder()
    del model.metadata_props[:]
    onnx.save(model, path)
    with pytest.raises(ValueError, match="carries no quietformer metadata"):
        quantize(path, cache, tmp_path / "q.onnx", allow_stale=True)


def test_the_summary_counts_sites_and_bytes(tmp_path: Path) -> None:
    path, cache = calibrated(tmp_path, EncoderRecipe(gate="linear"))
    summary = quantize(path, cache, tmp_path / "q.onnx")
    assert summary.activations == {"layernorm_output": 2, "context": 1, "activation_output": 1}
    assert summary.weights == {"linear": 6}
    assert list(summary.float_linears.values()) == ["it makes gates, and the gate path is off"]
    assert summary.quantized_bytes == (tmp_path / "q.onnx").stat().st_size < summary.float_bytes
    assert GraphInfo.read(onnx.load(tmp_path / "q.onnx"), name="q").profile == summary.profile
