"""Exports of vision transformers: every family and variant, batches not traced, preprocessing, integers, engines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from transformers import PreTrainedModel

from deploy.backends.engine_builder import build_engine
from deploy.backends.opening import open_backend
from deploy.calibration.calibrate import calibrate
from deploy.data.image_preprocessing import read_image_encoder
from deploy.graphs.attention_pattern import find_attentions
from deploy.graphs.graph_index import GraphIndex
from deploy.graphs.graph_info import read_info
from deploy.graphs.profiles import PROFILES
from deploy.graphs.shapes import parse_shapes
from deploy.graphs.sites import find_sites
from deploy.quantization.lint import lint
from deploy.quantization.quantize import quantize
from export.lowering import lower
from export.to_onnx import ExportReport, export_checkpoint
from tests.deploy.calibrated import run_literally
from tests.export.tiny_checkpoints import GATES, SOFTMAXES
from tests.export.vision_checkpoints import CLASSES, ENCODER, SMALL_ENCODER, converted_vision, small_vit, write_vision
from tests.train.vision import TIMM_MODELS, image_batch, logits_of, tiny_vision
from train.attention.settings import AttentionSettings
from train.simulation.simulated_model import simulated_model

PATCH_NORM: dict[str, Any] = {"patch_norm": True}


def _settings(softmax: str, gate: str, **more: Any) -> AttentionSettings:
    return AttentionSettings(**SOFTMAXES[softmax], **GATES[gate], **more)


@pytest.mark.parametrize("lowering", ["folded", "literal"])
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("softmax", SOFTMAXES)
@pytest.mark.parametrize("name", ["vit", "timm", "timm-qk-norm"])
def test_both_lowerings_of_every_variant_compute_what_the_model_computes(
    name: str, softmax: str, gate: str, lowering: Any
) -> None:
    model = converted_vision(name, _settings(softmax, gate, patch_norm=gate == "mlp"))
    lowered = lower(model, lowering=lowering)
    assert not lowered.masked
    difference = (logits_of(lowered.model, image_batch()) - logits_of(model, image_batch())).abs().max()
    assert difference < 5e-5


def _export(folder: Path, name: str, settings: AttentionSettings, **options: Any) -> ExportReport:
    checkpoint = write_vision(converted_vision(name, settings), folder / "checkpoint")
    return export_checkpoint(checkpoint, folder / "graph" / "model.onnx", **options)


@pytest.mark.parametrize(
    ("name", "settings", "options"),
    [
        ("vit", _settings("vanilla", "none"), {"opset": 17}),
        ("vit", _settings("clipped", "mlp", patch_norm=True), {"lowering": "literal"}),
        ("vit", _settings("clipped-per-row", "linear"), {"opset": 23}),
        ("timm", _settings("clipped", "linear", patch_norm=True), {}),
        ("timm", _settings("off-by-one", "all-heads"), {}),
    ],
)
def test_graphs_agree_with_pytorch_at_batches_that_were_not_traced(
    tmp_path: Path, name: str, settings: AttentionSettings, options: dict[str, Any]
) -> None:
    report = _export(tmp_path, name, settings, **options)
    assert [(row.batch, row.length) for row in report.parity] == [(1, None), (3, None), (5, None)]
    assert max(row.max_difference for row in report.parity) < 1e-4
    model = onnx.load(report.path)
    attentions = find_attentions(GraphIndex(model.graph))
    assert [attention.gate_probability is not None for attention in attentions] == [settings.gate != "none"] * 2
    (pixels,) = model.graph.input
    assert [dim.dim_param or dim.dim_value for dim in pixels.type.tensor_type.shape.dim] == ["batch", 3, 12, 8]
    kinds = {site.kind for site in find_sites(model, PROFILES["paper"]).activations}
    assert {"linear_input", "embedding_sum", "residual_sum", "layernorm_output", "context", "scores"} <= kinds
    assert [left.reason for left in find_sites(model, PROFILES["paper"]).float_linears] == [
        "its output is an output of the graph"
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["deit", *(name for name in TIMM_MODELS if name != "timm")])
def test_relatives_agree_too(tmp_path: Path, name: str) -> None:
    report = _export(tmp_path, name, _settings("clipped", "linear"))
    assert max(row.max_difference for row in report.parity) < 1e-4


def test_a_bare_model_puts_out_tokens_and_metadata_says_how_images_are_prepared(tmp_path: Path) -> None:
    bare = tiny_vision("vit").base_model
    assert isinstance(bare, PreTrainedModel)
    report = export_checkpoint(write_vision(bare, tmp_path / "checkpoint"), tmp_path / "graph" / "model.onnx")
    info = read_info(report.path)
    assert (info.task, info.reads, info.family) == ("image-feature-extraction", "pixels", "vit")
    assert (info.max_length, info.vocab_size, info.num_layers, info.labels) == (7, 0, 2, ())
    assert info.image == ENCODER.identity()
    assert read_image_encoder(report.path.parent) == ENCODER
    with open_backend("onnxruntime", report.path, threads=1) as backend:
        hidden = backend.infer({"pixel_values": image_batch(count=4)["pixel_values"].numpy()})["last_hidden_state"]
    assert hidden.shape == (4, 7, 24)


def test_what_does_not_fit_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    checkpoint = write_vision(tiny_vision("vit"), tmp_path / "checkpoint")
    out = tmp_path / "graph" / "model.onnx"
    with pytest.raises(ValueError, match=r"length 16 has no effect on .*: its model reads images"):
        export_checkpoint(checkpoint, out, length=16)
    other = write_vision(tiny_vision("vit"), tmp_path / "other", replace(ENCODER, size=(8, 8)))
    with pytest.raises(ValueError, match="prepares images of 8 x 8, which its model refuses: Input image size"):
        export_checkpoint(other, out)
    (checkpoint / "preprocessor_config.json").unlink()
    with pytest.raises(FileNotFoundError, match="does not say how images are prepared"):
        export_checkpoint(checkpoint, out)
    assert not out.parent.exists()


@pytest.fixture(scope="module", params=["vanilla", "gated"])
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the checkpoint, graph and calibration of a small ViT."""
    folder = tmp_path_factory.mktemp("small")
    settings = AttentionSettings() if request.param == "vanilla" else _settings("clipped", "mlp", patch_norm=True)
    write_vision(small_vit(settings), folder / "checkpoint", SMALL_ENCODER)
    export_checkpoint(folder / "checkpoint", folder / "model.onnx")
    calibrate(folder / "model.onnx", _batches(), method="minmax", data={"kind": "test"}, seed=0, threads=1).save(
        folder / "calibration.json"
    )
    return folder


def _batches(seeds: tuple[int, ...] = (0, 1)) -> list[dict[str, np.ndarray]]:
    """Normalised smooth images."""
    made = []
    for seed in seeds:
        coarse = np.random.default_rng(seed).integers(0, 256, (8, 8, 8, 3)).astype(np.uint8)
        made.append({"pixel_values": SMALL_ENCODER.normalise(coarse.repeat(4, axis=1).repeat(4, axis=2))})
    return made


def test_w8a8_graphs_lint_clean_build_and_follow_the_float_model(small: Path, tmp_path: Path) -> None:
    from deploy.calibration.calibration_cache import CalibrationCache

    int8 = tmp_path / "model.int8.onnx"
    summary = quantize(small / "model.onnx", CalibrationCache.load(small / "calibration.json"), int8)
    assert summary.activations["linear_input"] == 1
    assert read_info(int8).labels == CLASSES
    assert lint(int8, "tensorrt") == []
    (feeds,) = _batches((7,))
    with open_backend("onnxruntime", small / "model.onnx", threads=1) as backend:
        expected = backend.infer(feeds)["logits"]
    for name in ("onnxruntime", "openvino"):
        with open_backend(name, int8, threads=1) as backend:
            assert np.abs(backend.infer(feeds)["logits"] - expected).max() < 0.1 * np.abs(expected).max()
    sizes = {"pixel_values": ("batch", 3, 32, 32)}
    report = build_engine(
        int8,
        tmp_path / "engine",
        compute_capabilities=("8.9",),
        min_shapes=parse_shapes("1", sizes),
        opt_shapes=parse_shapes("1", sizes),
        max_shapes=parse_shapes("8", sizes),
    )
    assert report.profile["pixel_values"]["max"] == [8, 3, 32, 32]


@pytest.mark.parametrize("profile", ["tensorrt", "paper"])
def test_integers_agree_with_the_simulation_in_pytorch(small: Path, tmp_path: Path, profile: Any) -> None:
    from deploy.calibration.calibration_cache import CalibrationCache

    int8 = tmp_path / "model.int8.onnx"
    quantize(small / "model.onnx", CalibrationCache.load(small / "calibration.json"), int8, profile=profile)
    (feeds,) = _batches((7,))
    integers = run_literally(int8, feeds)["logits"]
    with simulated_model(small / "checkpoint", _batches(), profile=profile, method="minmax", weights="minmax") as infer:
        simulated = infer(feeds)["logits"]
    with open_backend("onnxruntime", small / "model.onnx", threads=1) as backend:
        error = np.abs(integers - backend.infer(feeds)["logits"]).mean()
    assert np.abs(integers - simulated).mean() < 0.01 * error
