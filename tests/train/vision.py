"""Small vision transformers with random weights, of transformers and of timm, for tests of ``train``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    DeiTConfig,
    DeiTForImageClassification,
    PreTrainedModel,
    TimmWrapperConfig,
    TimmWrapperForImageClassification,
    ViTConfig,
    ViTForImageClassification,
)

NUM_CLASSES = 5
HIDDEN, HEADS, PATCHES = 24, 3, 6
"""Images are 12 x 8, patches 4 x 4."""

_SIZES: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "intermediate_size": 40,
    "image_size": (12, 8),
    "patch_size": (4, 4),
    "num_labels": NUM_CLASSES,
    "initializer_range": 0.5,
}
_TIMM_SIZES: dict[str, Any] = {
    "img_size": [12, 8],
    "patch_size": 4,
    "embed_dim": HIDDEN,
    "depth": 2,
    "num_heads": HEADS,
}

TIMM_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "timm": ("vit_small_patch16_224", {}),
    "timm-registers": ("vit_small_patch16_224", {"reg_tokens": 2, "no_embed_class": True, "init_values": 0.5}),
    "timm-no-class-token": ("vit_tiny_patch16_224", {"class_token": False, "global_pool": "avg", "qkv_bias": False}),
    "timm-qk-norm": ("vit_base_patch32_224", {"qk_norm": True, "pre_norm": True}),
    "timm-deit": ("deit_tiny_distilled_patch16_224", {}),
}
VISION_MODELS = ("vit", "deit", *TIMM_MODELS)
VISION_FAMILIES = ("vit", "timm")
"""One model of each layout."""


def tiny_vision(name: str, seed: int = 0) -> PreTrainedModel:
    """A two-layer classifier of 12 x 8 images, its attention far from uniform, in evaluation mode."""
    torch.manual_seed(seed)
    model: PreTrainedModel
    if name == "vit":
        model = ViTForImageClassification(ViTConfig(**_SIZES))
    elif name == "deit":
        model = DeiTForImageClassification(DeiTConfig(**_SIZES))
    else:
        pytest.importorskip("timm")
        architecture, arguments = TIMM_MODELS[name]
        config = TimmWrapperConfig(architecture=architecture, model_args=_TIMM_SIZES | arguments)
        config.num_labels = NUM_CLASSES
        model = TimmWrapperForImageClassification(config)
        enlarge_weights(model)
    model.eval()  # type: ignore[no-untyped-call]
    return model


def enlarge_weights(model: nn.Module) -> None:
    """Draw every matrix and every token anew, large enough that attention is not uniform."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.5)


def image_batch(seed: int = 0, count: int = 3) -> dict[str, torch.Tensor]:
    """Normalised images, float32 (B, 3, 12, 8)."""
    generator = torch.Generator().manual_seed(seed)
    return {"pixel_values": torch.randn(count, 3, 12, 8, generator=generator)}


def logits_of(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        logits_BK = model(**batch).logits
    assert isinstance(logits_BK, torch.Tensor)
    return logits_BK
