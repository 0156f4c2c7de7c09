"""A LayerNorm between the patch embedding of a vision transformer and its blocks (PAPER, section 2).

In ViT-S/16 it alone takes W8A8 from 69.2 to 79.6 (Quantizable Transformers, table 2). The norm is a submodule ``patch_norm`` of the patch
embedding, whose output it normalises, so its weights are saved beside those of the convolution. It is no change that a
pretrained model would not notice: use it for models that are trained from scratch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from train.families.known_families import PATCH_NORM_NAME, family_of, hidden_size_of, layers_of


def add_patch_norm_(model: PreTrainedModel) -> None:
    """Put a fresh LayerNorm behind the patch embedding, with the epsilon of the blocks, in place.

    Raises:
        ValueError: the model reads no images.
    """
    family = family_of(model)
    if family.patch_embedding is None:
        raise ValueError(f"patch_norm belongs to models that read images; family '{family.name}' reads tokens")
    embedding = model.base_model.get_submodule(family.patch_embedding)
    block_norm = layers_of(model)[0].attention_norm
    norm = nn.LayerNorm(hidden_size_of(model), eps=float(block_norm.eps))  # type: ignore[arg-type]
    parameter = next(embedding.parameters())
    embedding.add_module(PATCH_NORM_NAME, norm.to(device=parameter.device, dtype=parameter.dtype))
    embedding.register_forward_hook(_normalise)


def _normalise(embedding: nn.Module, _args: tuple[Any, ...], patches_BTD: torch.Tensor) -> torch.Tensor:
    normalised_BTD = embedding.get_submodule(PATCH_NORM_NAME)(patches_BTD)
    assert isinstance(normalised_BTD, torch.Tensor)
    return normalised_BTD
