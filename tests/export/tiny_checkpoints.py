"""Checkpoints of a few thousand weights, on disk as real ones are: config, safetensors, tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoConfig, PreTrainedModel

from train.attention.settings import AttentionSettings
from train.checkpoints.checkpoint import save
from train.conversion.convert import convert

VOCAB_SIZE = 100
POSITIONS = 48

SOFTMAXES: dict[str, dict[str, Any]] = {
    "vanilla": {},
    "clipped": {"softmax": "clipped", "alpha": 4.0, "length": 32},
    "clipped-zeta": {"softmax": "clipped", "gamma": -0.05, "zeta": 1.1},
    "clipped-per-row": {"softmax": "clipped_per_row", "alpha": 2.0},
    "off-by-one": {"softmax": "off_by_one"},
}
GATES: dict[str, dict[str, Any]] = {
    "none": {},
    "linear": {"gate": "linear", "gate_scale": 2.0},
    "mlp": {"gate": "mlp", "gate_hidden": 3, "gate_init": 0.25, "gate_scale": 4.0},
    "all-heads": {"gate": "all_heads_linear", "gate_scale": 1.0},
}


def settings(softmax: str, gate: str) -> AttentionSettings:
    return AttentionSettings(**SOFTMAXES[softmax], **GATES[gate])


def tiny_model(
    attention: AttentionSettings | None = None,
    *,
    architecture: str = "BertModel",
    num_layers: int = 2,
    seed: int = 0,
    **config_values: Any,
) -> PreTrainedModel:
    """A random model, peaked attention, gates away from their start, in evaluation mode."""
    torch.manual_seed(seed)
    model_class = getattr(transformers, architecture)
    config = AutoConfig.for_model(
        model_class.config_class.model_type,
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=POSITIONS,
        initializer_range=0.3,
        **config_values,
    )
    model = model_class(config)
    if attention is not None:
        convert(model, attention)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".gate." in name or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.3)
    model.eval()
    assert isinstance(model, PreTrainedModel)
    return model


def write_checkpoint(model: PreTrainedModel, folder: Path) -> Path:
    save(model, folder, source=None)
    write_tokenizer(folder / "tokenizer.json")
    return folder


def write_tokenizer(path: Path) -> None:
    """A word-level tokenizer that truncates and pads, as tokenizers saved by others often do."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{number}" for number in range(VOCAB_SIZE - 4))]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=8)
    path.write_text(tokenizer.to_str(), encoding="utf-8")


def write_pooling(folder: Path, mode: str) -> None:
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{mode}": True}), encoding="utf-8")
