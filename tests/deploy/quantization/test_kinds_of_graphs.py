"""Weights and activations of every kind in a whole graph, optional inputs that are left out, and graphs with nothing to quantize."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from deploy.backends.opening import open_backend
from deploy.calibration.calibrate import calibrate
from deploy.graphs.foreign_graph import normalise
from deploy.graphs.graph_info import GraphInfo
from deploy.graphs.profiles import PROFILES
from deploy.graphs.sites import find_sites
from deploy.quantization.lint import lint
from deploy.quantization.quantize import quantize
from tests.deploy.calibrated import calibrated, run_literally
from tests.deploy.encoder_graph import EncoderRecipe, encoder, feeds
from tests.deploy.foreign_encoder import foreign_encoder

GENERATOR = np.random.default_rng(0)
ORDINARY = (GENERATOR.standard_normal((32, 32)) / 6).astype(np.float32)


def _outlier(value: float) -> np.ndarray:
    weight = ORDINARY.copy()
    weight[3, 5] = value
    return weight


WEIGHTS = {
    "all zero": np.zeros((32, 32)),  # the output of the layer, and of what it weighs, is its bias throughout
    "constant": np.full((32, 32), 0.01),
    "one channel": ORDINARY * (np.arange(32) == 7),
    "outlier": _outlier(40.0),
    "denormal": ORDINARY * 1e-40,
    "smallest": ORDINARY * 1e-30,
}


@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("profile", ["tensorrt", "ort", "paper"])
def test_weights_of_every_kind_give_clean_graphs_near_the_float_one(tmp_path: Path, profile: str, kind: str) -> None:
    weight = WEIGHTS[kind].astype(np.float32)
    path, cache = calibrated(tmp_path, EncoderRecipe(weights={"w0_vw": weight, "w0_vb": np.zeros(32)}))
    quantize(path, cache, out := tmp_path / "q.onnx", profile=profile)
    assert lint(out, profile) == []
    exact = run_literally(path, feeds())["hidden"]
    with open_backend("onnxruntime", out, threads=1) as opened:
        found = opened.infer(feeds())["hidden"]
    # An outlier of 40 leaves the other weights of its matrix two bits; without it the error is that of eight bits.
    bound = 0.5 if kind == "outlier" else 0.12
    assert np.sqrt(np.mean((found - exact) ** 2)) < bound * np.sqrt(np.mean(exact**2))


@pytest.mark.parametrize("profile", ["tensorrt", "paper"])
def test_activations_that_are_zero_throughout_are_told_and_stay_zero(tmp_path: Path, profile: str) -> None:
    silent = {"w0_vw": np.zeros((32, 32)), "w0_vb": np.zeros(32)}
    path, cache = calibrated(tmp_path, EncoderRecipe(weights=silent))
    assert any("was 0 throughout" in warning and "'ctx_0'" in warning for warning in cache.warnings())
    quantize(path, cache, out := tmp_path / "q.onnx", profile=profile)
    model = onnx.load(out)
    (name,) = [node.output[0] for node in model.graph.node if node.input[0] == "ctx_0/quantized"]
    model.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    onnx.save(model, out)
    assert not run_literally(out, feeds())[name].any()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_fails_by_the_name_of_its_tensor(tmp_path: Path, value: float) -> None:
    onnx.save(
        encoder(EncoderRecipe(weights={"w0_kb": np.where(np.arange(32) == 3, value, 0.0)})), path := tmp_path / "m.onnx"
    )
    with pytest.raises(ValueError, match=r"tensor 'k_0' has \d+ non-finite values"):
        calibrate(path, [feeds()], method="minmax", data={"kind": "test"}, seed=0, threads=1)


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_a_mask_that_makes_no_numbers_fails_by_the_name_of_a_tensor(tmp_path: Path, value: float) -> None:
    model = foreign_encoder(14, mask_value=value)
    normalise(model, name="m")
    onnx.save(model, path := tmp_path / "m.onnx")
    with pytest.raises(ValueError, match=r"tensor 'prob_0' has \d+ non-finite values"):
        calibrate(path, [feeds()], method="minmax", data={"kind": "test"}, seed=0, threads=1)


def test_optional_inputs_that_are_left_out_stay_left_out(tmp_path: Path) -> None:
    """A Clip without a lower end and a norm without bias."""
    model = foreign_encoder(20, names="kept")
    graph = model.graph
    graph.initializer.append(numpy_helper.from_array(np.array(2.0, np.float32), "upper"))
    place = next(place for place, node in enumerate(graph.node) if node.output[0] == "act_0")
    graph.node[place].output[0] = "unclipped"
    graph.node.insert(place + 1, onnx.helper.make_node("Clip", ["unclipped", "", "upper"], ["act_0"], name="clip"))
    norm = next(node for node in graph.node if node.output[0] == "n1_0")
    del norm.input[2]
    normalise(model, name="m")
    GraphInfo(task="arrays", family="foreign", max_length=0, vocab_size=0, pad_token_id=0, num_layers=0).write(model)
    onnx.save(model, path := tmp_path / "m.onnx")
    exact = run_literally(path, feeds())["hidden"]
    cache = calibrate(path, [feeds()], method="minmax", data={"kind": "test"}, seed=0, threads=1)
    for profile in ("tensorrt", "paper"):
        quantize(path, cache, out := tmp_path / f"{profile}.onnx", profile=profile)
        onnx.checker.check_model(onnx.load(out), full_check=True)
        assert lint(out, profile) == []
        found = run_literally(out, feeds())["hidden"]
        assert 0 < np.abs(found - exact).max() < 0.2 * np.abs(exact).max()
        (clip,) = [node for node in onnx.load(out).graph.node if node.op_type == "Clip"]
        assert list(clip.input[1:]) == ["", "upper"]


def test_a_graph_with_nothing_to_quantize_says_so(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 20]> g (float[B, 8] x) => (float[B, 8] y) { y = Relu(x) }'
    )
    GraphInfo(task="arrays", family="foreign", max_length=0, vocab_size=0, pad_token_id=0, num_layers=0).write(model)
    onnx.save(model, path := tmp_path / "m.onnx")
    with pytest.raises(ValueError, match="has no tensor to calibrate: no profile quantizes anything in it"):
        calibrate(path, [{"x": np.ones((2, 8), np.float32)}], method="minmax", data={"kind": "test"}, seed=0)
    _, cache = calibrated(tmp_path)
    onnx.save(model, path)
    with pytest.raises(ValueError, match="has no linear layer that profile 'tensorrt' quantizes"):
        quantize(path, cache, tmp_path / "q.onnx", allow_stale=True)


def test_a_cache_of_a_graph_whose_tensors_were_renamed_is_refused_twice(tmp_path: Path) -> None:
    _, cache = calibrated(tmp_path)
    model = encoder()
    for node in model.graph.node:
        for names in (node.input, node.output):
            for slot, name in enumerate(names):
                if name == "act_0":
                    names[slot] = "renamed"
    onnx.save(model, path := tmp_path / "renamed.onnx")
    with pytest.raises(ValueError, match="model_sha256"):
        quantize(path, cache, tmp_path / "q.onnx")
    with pytest.raises(ValueError, match="tensor 'renamed' was not calibrated"):
        quantize(path, cache, tmp_path / "q.onnx", allow_stale=True)


@pytest.mark.parametrize("opset", range(13, 24))
def test_every_opset_from_13_to_23_has_the_sites_of_the_same_model(opset: int) -> None:
    model = foreign_encoder(opset)
    normalise(model, name="m")
    own = encoder(EncoderRecipe(mask="scaled"))
    for profile in PROFILES.values():
        assert [site.kind for site in find_sites(model, profile).activations] == [
            site.kind for site in find_sites(own, profile).activations
        ]
