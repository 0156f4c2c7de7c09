"""Vision transformers of a few thousand weights, on disk as real ones are: config, safetensors, preprocessing."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import (
    PreTrainedModel,
    TimmWrapperConfig,
    TimmWrapperForImageClassification,
    ViTConfig,
    ViTForImageClassification,
)

from deploy.data.image_encoding import ImageEncoder
from deploy.data.image_preprocessing import preprocessor_file
from tests.train.vision import enlarge_weights, tiny_vision
from train.attention.settings import AttentionSettings
from train.checkpoints.checkpoint import save
from train.conversion.convert import convert

ENCODER = ImageEncoder(size=(12, 8), mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.3), interpolation="bicubic")
"""For the models of ``tests.train.vision``."""
SMALL_ENCODER = ImageEncoder(size=(32, 32), mean=(0.49, 0.48, 0.45), std=(0.25, 0.24, 0.26))
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def converted_vision(name: str, settings: AttentionSettings) -> PreTrainedModel:
    """A model of ``tests.train.vision`` with gates away from their start."""
    model = tiny_vision(name)
    convert(model, settings)
    move_gates(model)
    return model


def small_vit(settings: AttentionSettings) -> PreTrainedModel:
    """A ViT of 32 x 32 images and patches of 8 x 8 with layers wide enough to be quantized."""
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, image_size=32, patch_size=8,
        initializer_range=0.2, id2label=dict(enumerate(CLASSES)),
    )  # fmt: skip
    model = ViTForImageClassification(config)
    convert(model, settings)
    move_gates(model)
    model.eval()  # type: ignore[no-untyped-call]
    return model


def small_timm(settings: AttentionSettings) -> PreTrainedModel:
    """timm's ViT of the same images and patches, one layer; it projects query, key and value at once."""
    torch.manual_seed(0)
    sizes = {"img_size": [32, 32], "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2}
    config = TimmWrapperConfig(architecture="vit_small_patch16_224", model_args=sizes)
    config.num_labels = len(CLASSES)
    model = TimmWrapperForImageClassification(config)
    enlarge_weights(model)
    convert(model, settings)
    move_gates(model)
    model.eval()  # type: ignore[no-untyped-call]
    return model


def move_gates(model: PreTrainedModel) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".gate." in name or "patch_norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.3)


def write_vision(model: PreTrainedModel, folder: Path, encoder: ImageEncoder = ENCODER) -> Path:
    save(model, folder, source=None)
    (folder / "preprocessor_config.json").write_text(preprocessor_file(encoder), encoding="utf-8")
    return folder
