"""Splitting inner units changes no output, shrinks the largest weights, and leaves an ordinary checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BertConfig,
    BertModel,
    LlamaConfig,
    LlamaModel,
    OPTConfig,
    OPTModel,
    PreTrainedModel,
    ViTConfig,
    ViTModel,
)

from train.attention.settings import AttentionSettings
from train.checkpoints.checkpoint import load, save
from train.conversion.convert import convert
from train.families.known_families import layers_of
from train.weights.channel_split import copies_of, split_channels

SIZES: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}


def models() -> dict[str, PreTrainedModel]:
    torch.manual_seed(0)
    return {
        "bert": BertModel(BertConfig(vocab_size=20, intermediate_size=24, **SIZES)),
        "llama": LlamaModel(LlamaConfig(vocab_size=20, intermediate_size=24, **SIZES)),
        "opt": OPTModel(OPTConfig(vocab_size=20, ffn_dim=24, word_embed_proj_dim=16, **SIZES)),
        "vit": ViTModel(ViTConfig(image_size=8, patch_size=4, intermediate_size=24, **SIZES)),
    }


def outputs(model: PreTrainedModel) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    if model.config.model_type == "vit":
        inputs = {"pixel_values": torch.randn(2, 3, 8, 8, generator=generator)}
    else:
        inputs = {"input_ids": torch.randint(2, 20, (2, 5), generator=generator)}
    with torch.inference_mode():
        model.eval()  # type: ignore[no-untyped-call]
        hidden = model(**inputs).last_hidden_state
    assert isinstance(hidden, torch.Tensor)
    return hidden


@pytest.mark.parametrize("family", ["bert", "llama", "opt", "vit"])
def test_outputs_stay_and_the_largest_weight_is_divided(family: str, tmp_path: Path) -> None:
    model = models()[family]
    for layer in layers_of(model):
        with torch.no_grad():
            layer.ffn_out.weight[3, 5] = 50.0
    convert(model, AttentionSettings(gate="linear", gate_scale=2.0))
    before = outputs(model)
    split_channels(model, units=8)
    assert torch.allclose(outputs(model), before, atol=2e-5 * float(before.abs().max()))
    for layer in layers_of(model):
        assert layer.ffn_out.weight.shape == (16, 32)
        assert float(layer.ffn_out.weight.detach().abs().max()) == pytest.approx(50.0 / 9)
    save(model, tmp_path / "split", source=None)
    assert torch.equal(outputs(load(tmp_path / "split")), outputs(model))


def test_each_unit_goes_to_whichever_holds_the_largest_weight() -> None:
    weight = torch.tensor([[12.0, -1.0, 0.0, 3.0], [1.0, 1.0, 0.0, -7.0]])
    copies = copies_of(weight, units=3)  # 12, 7 -> 6, 7 -> 6, 3.5 -> 4, 3.5
    assert copies.tolist() == [3, 1, 1, 2]
    assert copies_of(weight, units=1).tolist() == [2, 1, 1, 1]


def test_what_cannot_be_loaded_again_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        split_channels(models()["bert"], units=0)
