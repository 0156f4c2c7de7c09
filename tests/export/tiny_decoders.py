"""Decoders of a few thousand weights for tests of the export."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from tests.export.tiny_checkpoints import tiny_model
from train.attention.settings import AttentionSettings

FAMILIES: dict[str, dict[str, Any]] = {
    "opt": {
        "architecture": "OPTForCausalLM",
        "ffn_dim": 64,
        "word_embed_proj_dim": 32,
        "init_std": 0.3,
        "dropout": 0.0,
    },
    "opt-post-norm": {
        "architecture": "OPTForCausalLM",
        "ffn_dim": 64,
        "word_embed_proj_dim": 16,
        "init_std": 0.3,
        "do_layer_norm_before": False,
    },
    "llama": {
        "architecture": "LlamaForCausalLM",
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
        "pad_token_id": 1,
    },
}
"""Config values by family: OPT with norms before and after its blocks, Llama with grouped heads and tied embeddings."""


def tiny_decoder(family: str, attention: AttentionSettings | None = None, **changes: Any) -> PreTrainedModel:
    """A random decoder of :data:`FAMILIES`, peaked attention, gates away from their start, in evaluation mode."""
    return tiny_model(attention, **{**FAMILIES[family], **changes})
