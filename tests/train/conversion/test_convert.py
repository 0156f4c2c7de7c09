"""Conversion: what it records, what it refuses, which families it serves."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModel, BertConfig, BertModel, GPT2Config, GPT2Model, PreTrainedModel

from tests.train.encoders import last_hidden, padded_batch, tiny_config, tiny_encoder
from train.attention.gates import LinearGate
from train.attention.settings import AttentionSettings
from train.conversion.convert import convert, settings_of
from train.families.known_families import FAMILIES, layers_of

GATED = AttentionSettings(gate="linear", gate_scale=2.0)


_SIZE_NAMES = {"opt": {"intermediate_size": "ffn_dim"}}
_MORE_SIZES: dict[str, dict[str, Any]] = {
    "opt": {"word_embed_proj_dim": 24, "init_std": 0.5},
    "mistral": {"num_key_value_heads": 1, "sliding_window": None},
    "qwen2": {"num_key_value_heads": 1},
}


def _tiny(model_type: str, **changes: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    names = _SIZE_NAMES.get(model_type, {})
    sizes: dict[str, Any] = {
        names.get(key, key): getattr(tiny_config(), key)
        for key in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    }
    sizes |= {"max_position_embeddings": 32, "initializer_range": 0.5, **_MORE_SIZES.get(model_type, {}), **changes}
    model = AutoModel.from_config(AutoConfig.for_model(model_type, **sizes))  # type: ignore[no-untyped-call]
    assert isinstance(model, PreTrainedModel)
    model.eval()  # type: ignore[no-untyped-call]
    return model


TEXT_MODEL_TYPES = sorted({name for family in FAMILIES if family.inputs == "tokens" for name in family.model_types})


@pytest.mark.parametrize("model_type", TEXT_MODEL_TYPES)
def test_every_supported_text_family_keeps_its_outputs_and_gets_gates_that_work(model_type: str) -> None:
    model, batch = _tiny(model_type), padded_batch()
    keep = batch["attention_mask"].bool()
    before = last_hidden(model, batch)
    convert(model, GATED)
    assert torch.equal(last_hidden(model, batch)[keep], before[keep])
    for layer in layers_of(model):
        assert isinstance(layer.attention.gate, LinearGate)
        torch.nn.init.constant_(layer.attention.gate.bias, -2.0)
    assert not torch.allclose(last_hidden(model, batch), before, atol=1e-2)


def test_settings_are_recorded_in_the_config_as_plain_values() -> None:
    model = tiny_encoder()
    assert settings_of(model) is None
    convert(model, GATED)
    assert model.config.quietformer == GATED.to_dict()
    assert settings_of(model) == GATED


def test_gate_weights_are_named_after_their_attention_module() -> None:
    model = tiny_encoder()
    convert(model, AttentionSettings(gate="mlp", gate_hidden=2))
    names = [name for name in model.state_dict() if name.startswith("encoder.layer.1.attention.self.gate.")]
    assert [name.rsplit(".", 1)[1] for name in names] == ["bias", "hidden_weight", "hidden_bias", "weight", "scale"]


def test_the_seed_decides_the_hidden_weights_of_gates_and_layers_differ() -> None:
    settings, models = AttentionSettings(gate="mlp", gate_hidden=2), [tiny_encoder() for _ in range(3)]
    for model, seed in zip(models, (1, 1, 2), strict=True):
        convert(model, settings, seed=seed)
    first, second = (
        "encoder.layer.0.attention.self.gate.hidden_weight",
        "encoder.layer.1.attention.self.gate.hidden_weight",
    )
    assert torch.equal(models[0].get_parameter(first), models[1].get_parameter(first))
    assert not torch.equal(models[0].get_parameter(first), models[2].get_parameter(first))
    assert not torch.equal(models[0].get_parameter(first), models[0].get_parameter(second))


def test_a_copy_of_a_converted_model_is_independent() -> None:
    model, batch = tiny_encoder(), padded_batch()
    convert(model, GATED)
    before = last_hidden(model, batch)
    twin = copy.deepcopy(model)
    for layer in layers_of(twin):
        assert isinstance(layer.attention.gate, LinearGate)
        torch.nn.init.constant_(layer.attention.gate.bias, -2.0)
    assert torch.equal(last_hidden(model, batch), before)
    assert not torch.allclose(last_hidden(twin, batch), before)


def test_a_half_precision_model_gets_half_precision_gates() -> None:
    model, batch = tiny_encoder(), padded_batch()
    model.bfloat16()
    before = last_hidden(model, batch)
    convert(model, GATED)
    assert torch.equal(last_hidden(model, batch), before)


def test_converting_twice_is_refused() -> None:
    model = tiny_encoder()
    convert(model, GATED)
    with pytest.raises(ValueError, match=r"already converted \(softmax 'vanilla', gate 'linear'\)"):
        convert(model, AttentionSettings())


def test_a_model_converted_with_vanilla_attention_takes_gates_and_stays_as_it_was() -> None:
    model, batch = tiny_encoder(), padded_batch()
    convert(model, AttentionSettings())
    before = last_hidden(model, batch)
    convert(model, GATED)
    assert settings_of(model) == GATED
    assert torch.equal(last_hidden(model, batch), before)


def test_an_unsupported_family_is_refused_with_the_supported_ones() -> None:
    model = GPT2Model(GPT2Config(vocab_size=20, n_embd=8, n_layer=1, n_head=2, n_positions=16))
    with pytest.raises(ValueError, match=r"'gpt2' is not supported: .*supported are bert, roberta"):
        convert(model, GATED)
    assert settings_of(model) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"is_decoder": True}, "is a decoder"),
        ({"is_decoder": True, "add_cross_attention": True}, "is a decoder"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
    ],
)
def test_models_that_the_attention_cannot_serve_are_refused(changes: dict[str, Any], message: str) -> None:
    config = BertConfig(**{**tiny_config().to_dict(), **changes})
    with pytest.raises(ValueError, match=message):
        convert(BertModel(config), GATED)


@pytest.mark.parametrize(
    ("model_type", "changes", "message"),
    [
        ("llama", {"is_causal": False}, r"attends both ways \(is_causal is false\)"),
        ("mistral", {"sliding_window": 8}, r"attends within windows \(sliding_window is 8\)"),
        (
            "qwen2",
            {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
            r"attends within windows \(layer_types has 'sliding_attention'\)",
        ),
    ],
)
def test_causal_models_that_the_attention_cannot_serve_are_refused(
    model_type: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        convert(_tiny(model_type, **changes), GATED)


def test_a_window_that_is_switched_off_is_no_window() -> None:
    convert(_tiny("qwen2", use_sliding_window=False, sliding_window=8), GATED)


@pytest.mark.parametrize("gate", ["linear", "mlp"])
def test_gates_on_slices_are_refused_where_heads_and_hidden_state_differ_in_width(gate: str) -> None:
    model = _tiny("llama", head_dim=4)
    hidden = 2 if gate == "mlp" else None
    with pytest.raises(ValueError, match=r"24 features and all heads together 12; use gate = 'all_heads_linear'"):
        convert(model, AttentionSettings.from_dict({"gate": gate, "gate_hidden": hidden}))
    assert settings_of(model) is None
    convert(model, AttentionSettings(gate="all_heads_linear"))
    assert last_hidden(model, padded_batch()).isfinite().all()
