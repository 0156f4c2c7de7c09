"""Checkpoints of vision transformers: written and read bit for bit, timm's own folders, and what is refused."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from transformers import (
    PreTrainedModel,
    TimmWrapperConfig,
    TimmWrapperForImageClassification,
    ViTForImageClassification,
)

from tests.train.attention.test_vision_attention import GATES, SOFTMAX, converted
from tests.train.encoders import tiny_encoder
from tests.train.vision import NUM_CLASSES, TIMM_MODELS, VISION_MODELS, image_batch, logits_of, tiny_vision
from train.attention.settings import AttentionSettings
from train.checkpoints.checkpoint import load, save
from train.conversion.architecture import ModelDescription, build_model
from train.conversion.convert import convert, settings_of
from train.families.known_families import family_of, patch_norm_of

PREPROCESSING = '{"image_processor_type": "ViTImageProcessor", "size": 8}'


def assert_same_model(found: PreTrainedModel, expected: PreTrainedModel) -> None:
    assert type(found) is type(expected)
    assert settings_of(found) == settings_of(expected)
    expected_state, found_state = expected.state_dict(), found.state_dict()
    assert found_state.keys() == expected_state.keys()
    for name, tensor in expected_state.items():
        assert torch.equal(found_state[name], tensor), name
    assert torch.equal(logits_of(found, image_batch()), logits_of(expected, image_batch()))


@pytest.mark.parametrize("name", VISION_MODELS)
def test_a_checkpoint_is_read_back_bit_for_bit(tmp_path: Path, name: str) -> None:
    model = converted(name, **SOFTMAX["clipped"], **GATES["mlp"], patch_norm=True)
    save(model, tmp_path / "model", source=None)
    assert_same_model(load(tmp_path / "model"), model)


@pytest.mark.parametrize("name", ["vit", "timm"])
@pytest.mark.parametrize("settings", [{}, SOFTMAX["off_by_one"], GATES["linear"], GATES["all_heads_linear"]])
def test_every_variant_is_restored_from_the_config(tmp_path: Path, name: str, settings: dict[str, Any]) -> None:
    model = converted(name, **settings)
    save(model, tmp_path / "model", source=None)
    assert_same_model(load(tmp_path / "model"), model)


@pytest.mark.parametrize("original_names", [True, False])
def test_weights_under_former_and_under_current_names_are_read(tmp_path: Path, original_names: bool) -> None:
    model = tiny_vision("vit")
    model.save_pretrained(tmp_path, save_original_format=original_names)
    names = safetensors.torch.load_file(tmp_path / "model.safetensors")
    assert any("encoder.layer.1.attention.attention.query" in key for key in names) == original_names
    assert torch.equal(logits_of(load(tmp_path), image_batch()), logits_of(model, image_batch()))
    assert isinstance(load(tmp_path), ViTForImageClassification)


@pytest.mark.parametrize("name", ["vit", "deit", "timm", "timm-deit", "timm-no-class-token"])
def test_the_bare_encoder_of_a_classifier_can_be_loaded(tmp_path: Path, name: str) -> None:
    model = tiny_vision(name)
    save(model, tmp_path / "model", source=None)
    bare = load(tmp_path / "model", head="none")
    assert not any("classifier" in key or "head" in key for key in bare.state_dict())
    with torch.no_grad():
        found = bare(**image_batch()).last_hidden_state
        whole = model.base_model
        if name.startswith("timm"):
            expected = getattr(whole, "forward_features")(image_batch()["pixel_values"])  # noqa: B009 - timm's own method
        else:
            expected = whole(**image_batch()).last_hidden_state
    assert torch.equal(found, expected)


def write_timm_folder(folder: Path, name: str) -> Any:
    """A folder as timm's hub functions write it, and the timm model in it."""
    timm = pytest.importorskip("timm")
    architecture, arguments = TIMM_MODELS[name]
    arguments = arguments | {"img_size": [12, 8], "patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 3}
    torch.manual_seed(3)
    model = timm.create_model(architecture, pretrained=False, num_classes=NUM_CLASSES, **arguments).eval()
    config = {
        "architecture": architecture,
        "num_classes": NUM_CLASSES,
        "num_features": 24,
        "global_pool": "token",
        "model_args": arguments,
        "pretrained_cfg": {"input_size": [3, 12, 8], "crop_mode": "squash", "num_classes": NUM_CLASSES, "tag": "x"},
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    safetensors.torch.save_file(model.state_dict(), folder / "model.safetensors")
    return model


@pytest.mark.parametrize("name", ["timm", "timm-registers"])
def test_a_folder_that_timm_wrote_is_read_and_written_on(tmp_path: Path, name: str) -> None:
    own = write_timm_folder(tmp_path / "timm", name)
    model = load(tmp_path / "timm")
    with torch.no_grad():
        expected = own(image_batch()["pixel_values"])
        features = own.forward_features(image_batch()["pixel_values"])
    assert torch.equal(logits_of(model, image_batch()), expected)
    with torch.no_grad():
        assert torch.equal(load(tmp_path / "timm", head="none")(**image_batch()).last_hidden_state, features)
    convert(model, AttentionSettings(gate="linear", gate_scale=2.0))
    save(model, tmp_path / "gated", source=tmp_path / "timm")
    again = load(tmp_path / "gated")
    assert torch.equal(logits_of(again, image_batch()), expected)
    assert again.config.pretrained_cfg["input_size"] == [3, 12, 8]


def test_the_preprocessing_file_travels_along(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "preprocessor_config.json").write_text(PREPROCESSING)
    save(tiny_vision("vit"), tmp_path / "model", source=tmp_path / "source")
    assert (tmp_path / "model" / "preprocessor_config.json").read_text() == PREPROCESSING


@pytest.mark.parametrize(
    ("architecture", "arguments", "message"),
    [
        ("resnet18", {}, "it is a ResNet, not a VisionTransformer"),
        ("swin_tiny_patch4_window7_224", {}, "it is a SwinTransformer"),
        ("vit_small_patch16_224", {"scale_attn_norm": True}, "gate or a norm of its own"),
        ("vit_small_patch16_224", {"global_pool": "map", "class_token": False}, "attention of another kind"),
        ("vit_small_patch16_224", {"norm_layer": "rmsnorm"}, "normalises with RmsNorm"),
        ("vit_small_patch16_224", {"attn_layer": "diff"}, "made of DiffAttention"),
    ],
)
def test_a_timm_model_of_another_kind_is_refused_with_the_reason(
    architecture: str, arguments: dict[str, Any], message: str
) -> None:
    pytest.importorskip("timm")
    sizes = {} if architecture != "vit_small_patch16_224" else {"depth": 1, "embed_dim": 24, "num_heads": 3}
    with torch.device("meta"):
        config = TimmWrapperConfig(architecture=architecture, model_args=sizes | arguments)
        model = TimmWrapperForImageClassification(config)
    with pytest.raises(ValueError, match=f"timm model '{architecture}' is not supported: .*{message}"):
        convert(model, AttentionSettings())


def test_an_architecture_that_timm_does_not_know_is_refused_by_the_file(tmp_path: Path) -> None:
    write_timm_folder(tmp_path / "timm", "timm")
    values = json.loads((tmp_path / "timm" / "config.json").read_text())
    (tmp_path / "timm" / "config.json").write_text(json.dumps(values | {"architecture": "vit_enormous"}))
    with pytest.raises(ValueError, match=r"config\.json describes no model .*'vit_enormous'"):
        load(tmp_path / "timm")


def test_without_timm_its_checkpoints_say_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_timm_folder(tmp_path / "timm", "timm")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ImportError, match=r"quietformer\[timm\]"):
        load(tmp_path / "timm")


def test_a_patch_norm_is_refused_where_there_are_no_patches() -> None:
    model = tiny_encoder()
    with pytest.raises(ValueError, match="patch_norm belongs to models that read images; family 'bert' reads tokens"):
        convert(model, AttentionSettings(patch_norm=True))
    with pytest.raises(ValueError, match="patch_norm is 1"):
        AttentionSettings.from_dict({"patch_norm": 1})
    assert not AttentionSettings(patch_norm=True).is_vanilla


@pytest.mark.parametrize("architecture", ["vit", "timm:vit_tiny_patch16_224"])
def test_a_model_from_scratch_can_be_built_without_memory(architecture: str) -> None:
    config: dict[str, Any] = {"image_size": 32, "hidden_size": 48, "num_attention_heads": 3, "num_labels": 7}
    if architecture.startswith("timm:"):
        pytest.importorskip("timm")
        config = {"img_size": 32, "patch_size": 4, "num_labels": 7}
    description = ModelDescription(architecture=architecture, config=config, head="image-classification")
    with torch.device("meta"):
        model = build_model(description, AttentionSettings(gate="linear", patch_norm=True), seed=0)
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
    assert patch_norm_of(model) is not None
    assert family_of(model).inputs == "pixels"
    classifier = model.get_submodule("timm_model.head" if architecture.startswith("timm:") else "classifier")
    assert isinstance(classifier, torch.nn.Linear)
    assert classifier.out_features == 7


def test_a_timm_name_or_argument_that_does_not_exist_is_refused() -> None:
    pytest.importorskip("timm")
    for name, config, message in (
        ("timm:vit_enormous", {}, "'vit_enormous'"),
        ("timm:vit_tiny_patch16_224", {"patches": 3}, "patches"),
    ):
        description = ModelDescription(architecture=name, config=config, head="image-classification")
        with pytest.raises(ValueError, match=f"'{name}' cannot be built: .*{message}"):
            build_model(description, AttentionSettings(), seed=0)
