"""Small causal language models with random weights, one for each layout, for tests of ``train``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, OPTConfig, OPTForCausalLM, PreTrainedModel

VOCABULARY = 50


def tiny_opt(seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A two-layer OPT whose attention is far from uniform, in evaluation mode."""
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "ffn_dim": 40,
        "word_embed_proj_dim": 24,
        "max_position_embeddings": 32,
        "init_std": 0.4,
        "dropout": 0.0,
    }
    return _evaluating(OPTForCausalLM(OPTConfig(**{**sizes, **changes})))


def tiny_opt_post_norm(seed: int = 0) -> PreTrainedModel:
    """As OPT-350m: norms after the blocks, and embeddings of another width than the stream."""
    return tiny_opt(seed, do_layer_norm_before=False, word_embed_proj_dim=16)


def tiny_llama(seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A two-layer Llama with tied embeddings whose four query heads share two key and value heads."""
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 40,
        "max_position_embeddings": 64,
        "initializer_range": 0.4,
        "tie_word_embeddings": True,
    }
    return _evaluating(LlamaForCausalLM(LlamaConfig(**{**sizes, **changes})))


DECODERS: dict[str, Callable[[], PreTrainedModel]] = {
    "opt": tiny_opt,
    "opt-post-norm": tiny_opt_post_norm,
    "llama": tiny_llama,
}


def _evaluating(model: PreTrainedModel) -> PreTrainedModel:
    with torch.no_grad():  # norms and biases that start at 1 and 0 would hide mistakes
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.eval()  # type: ignore[no-untyped-call]
    return model
