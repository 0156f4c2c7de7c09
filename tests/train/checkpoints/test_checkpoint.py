"""Checkpoints: exact round trips, and refusal of everything that does not fit."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from transformers import AutoModel, BertForPreTraining, PreTrainedModel

from tests.train.encoders import (
    MINILM,
    VARIANTS,
    last_hidden,
    padded_batch,
    randomize_gates,
    tiny_config,
    tiny_encoder,
    tiny_masked_lm,
)
from train.attention.settings import AttentionSettings
from train.checkpoints.checkpoint import checkpoint_sha256, load, save
from train.conversion.convert import convert, settings_of


def _assert_same_weights(first: PreTrainedModel, second: PreTrainedModel) -> None:
    one, other = first.state_dict(), second.state_dict()
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture
def gated(tmp_path: Path) -> Path:
    """Checkpoint folder of a small gated model."""
    model = tiny_encoder()
    convert(model, VARIANTS["gate-mlp"])
    randomize_gates(model)
    save(model, tmp_path / "gated", source=None)
    return tmp_path / "gated"


def _edit_config(folder: Path, **changes: Any) -> None:
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, **changes}))


def _read_weights(folder: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(folder / "model.safetensors")


def _write_weights(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    safetensors.torch.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("variant", VARIANTS)
def test_save_and_load_round_trip_bit_for_bit(variant: str, tmp_path: Path) -> None:
    model, batch = tiny_encoder(), padded_batch()
    convert(model, VARIANTS[variant])
    randomize_gates(model)
    save(model, tmp_path / "first", source=None)
    loaded = load(tmp_path / "first")
    save(loaded, tmp_path / "second", source=None)
    assert settings_of(loaded) == VARIANTS[variant]
    _assert_same_weights(model, loaded)
    assert torch.equal(last_hidden(model, batch), last_hidden(loaded, batch))
    assert checkpoint_sha256(tmp_path / "first") == checkpoint_sha256(tmp_path / "second")


def test_the_real_minilm_loads_as_a_vanilla_model_equal_to_transformers(tmp_path: Path) -> None:
    batch = padded_batch(vocab_size=30_000)
    model, own = load(MINILM), AutoModel.from_pretrained(MINILM).eval()
    assert settings_of(model) is None
    assert model.dtype == torch.float32
    assert torch.equal(last_hidden(model, batch), last_hidden(own, batch))
    convert(model, AttentionSettings(gate="linear", gate_scale=2.0))
    save(model, tmp_path / "retrofit", source=MINILM)
    assert torch.equal(last_hidden(load(tmp_path / "retrofit"), batch), last_hidden(own, batch))


def test_loading_leaves_the_random_generator_alone(gated: Path) -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    load(gated)
    assert torch.equal(torch.rand(2), expected)


def test_half_precision_weights_are_loaded_as_float32(tmp_path: Path) -> None:
    model = tiny_encoder()
    model.half()  # type: ignore[no-untyped-call]
    save(model, tmp_path / "half", source=None)
    loaded = load(tmp_path / "half")
    assert loaded.dtype == torch.float32
    assert torch.equal(
        loaded.get_parameter("encoder.layer.0.output.dense.weight"),
        model.get_parameter("encoder.layer.0.output.dense.weight").float(),
    )


def test_a_masked_language_model_keeps_its_tied_head(tmp_path: Path) -> None:
    model = tiny_masked_lm()
    convert(model, VARIANTS["clipped-and-gated"])
    save(model, tmp_path / "mlm", source=None)
    loaded = load(tmp_path / "mlm")
    assert type(loaded).__name__ == "BertForMaskedLM"
    with torch.no_grad():
        assert torch.equal(loaded(**padded_batch()).logits, model(**padded_batch()).logits)
    bare = load(tmp_path / "mlm", head="none")
    base = model.base_model
    assert isinstance(base, PreTrainedModel)
    assert torch.equal(last_hidden(bare, padded_batch()), last_hidden(base, padded_batch()))


def test_a_pretraining_checkpoint_gives_its_masked_language_model(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = BertForPreTraining(tiny_config())
    model.eval()  # type: ignore[no-untyped-call]
    save(model, tmp_path / "pretraining", source=None)
    loaded = load(tmp_path / "pretraining", head="masked-lm")
    with torch.no_grad():
        assert torch.equal(loaded(**padded_batch()).logits, model(**padded_batch()).prediction_logits)


def test_old_names_of_layer_norm_weights_are_understood(gated: Path) -> None:
    before = load(gated)
    old_names = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    renamed = {}
    for name, weight in _read_weights(gated).items():
        module, _, _ = name.rpartition("LayerNorm.")
        renamed[module + old_names.get(name.removeprefix(module), name.removeprefix(module))] = weight
    assert "encoder.layer.0.output.LayerNorm.gamma" in renamed
    _write_weights(gated, renamed)
    _assert_same_weights(load(gated), before)


def test_a_checkpoint_without_a_pooler_is_a_model_without_a_pooler(gated: Path, tmp_path: Path) -> None:
    weights = _read_weights(gated)
    _write_weights(gated, {name: weight for name, weight in weights.items() if not name.startswith("pooler.")})
    model = load(gated)
    assert model.pooler is None
    save(model, tmp_path / "again", source=None)
    _assert_same_weights(load(tmp_path / "again"), model)


def test_shards_are_read_together_and_a_missing_one_is_named(gated: Path) -> None:
    whole = load(gated)
    weights = _read_weights(gated)
    (gated / "model.safetensors").unlink()
    names = sorted(weights)
    shards = {"model-00001-of-00002.safetensors": names[:10], "model-00002-of-00002.safetensors": names[10:]}
    for file, part in shards.items():
        safetensors.torch.save_file({name: weights[name] for name in part}, gated / file)
    index = {"weight_map": {name: file for file, part in shards.items() for name in part}}
    (gated / "model.safetensors.index.json").write_text(json.dumps(index))
    _assert_same_weights(load(gated), whole)
    (gated / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="model-00002-of-00002"):
        load(gated)


@pytest.mark.parametrize("kept_bytes", [0, 6, 3000, -1])
def test_truncated_weights_are_refused(gated: Path, kept_bytes: int) -> None:
    content = (gated / "model.safetensors").read_bytes()
    (gated / "model.safetensors").write_bytes(content[:kept_bytes])
    with pytest.raises(ValueError, match=r"model.safetensors is not a complete safetensors file"):
        load(gated)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quietformer": None}, r"weights that BertModel with its attention settings does not have.*gate"),
        ({"quietformer": {"gate": "linear"}}, r"gate.weight' has shape \(3, 1, 3\); the config asks for \(3, 1, 8\)"),
        ({"quietformer": {"gate": "mlp", "gate_hidden": 3}}, r"stored with scale 3.33333, but .* gate_scale = 1"),
        ({"quietformer": {"gatte": "mlp"}}, r"unknown attention setting 'gatte'"),
        ({"quietformer": {"gate_init": "high"}}, r"attention settings in the config"),
        ({"quietformer": "clipped"}, r"expected a table of attention settings"),
        ({"num_hidden_layers": 3}, r"lacks \d+ weights of BertModel, the first is 'encoder.layer.2"),
        ({"num_hidden_layers": 1}, r"holds \d+ weights that BertModel .* 'encoder.layer.1"),
        ({"intermediate_size": 41}, r"has shape .* the config asks for .*41"),
        ({"architectures": ["BertForMaskedLM"]}, r"lacks \d+ weights of BertForMaskedLM, .*'cls.predictions"),
        ({"architectures": ["NoSuchModel"]}, r"architecture 'NoSuchModel', which transformers does not have"),
        ({"model_type": "gpt2"}, r"model type 'gpt2' is not supported"),
        ({"model_type": 3}, r"names no 'model_type'"),
        ({"hidden_size": "wide"}, r"config.json: .*hidden_size"),
        ({"is_decoder": True}, r"is a decoder"),
        ({"architectures": [5]}, r"architecture '5', which transformers does not have"),
        ({"hidden_act": "nope"}, r"config.json describes no model that can be built: KeyError: 'nope'"),
        ({"num_attention_heads": 0}, r"describes no model that can be built: ZeroDivisionError"),
        ({"num_attention_heads": 7}, r"config.json describes no model that can be built: .*not a multiple"),
        ({"pad_token_id": 99_999}, r"describes no model that can be built: AssertionError"),
        ({"dtype": "float99"}, r"config.json: AttributeError: .*float99"),
    ],
    ids=lambda value: None if isinstance(value, dict) else value[:24],
)
def test_a_config_that_does_not_fit_the_weights_is_refused(gated: Path, changes: dict[str, Any], message: str) -> None:
    _edit_config(gated, **changes)
    with pytest.raises(ValueError, match=message):
        load(gated)


def test_one_missing_or_left_over_weight_is_named(gated: Path) -> None:
    weights = _read_weights(gated)
    _write_weights(gated, {**weights, "stray": torch.zeros(1)})
    with pytest.raises(ValueError, match="the first is 'stray'"):
        load(gated)
    weights.pop("encoder.layer.1.output.dense.bias")
    _write_weights(gated, weights)
    with pytest.raises(
        ValueError, match=r"lacks 1 weights of BertModel, the first is 'encoder.layer.1.output.dense.bias'"
    ):
        load(gated)


def test_an_integer_weight_is_refused_as_quantized(gated: Path) -> None:
    name = "encoder.layer.0.output.dense.weight"
    weights = _read_weights(gated)
    _write_weights(gated, {**weights, name: weights[name].to(torch.int8)})
    with pytest.raises(ValueError, match=r"is torch.int8; expected floating point"):
        load(gated)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_weight_that_is_not_finite_is_refused_by_name(gated: Path, value: float) -> None:
    name = "encoder.layer.0.output.dense.weight"
    weights = _read_weights(gated)
    weights[name][0, 0] = value
    _write_weights(gated, weights)
    with pytest.raises(ValueError, match=f"weight '{name}' holds NaN or infinity"):
        load(gated)


def test_an_existing_folder_is_replaced_only_with_force_and_only_if_it_is_a_checkpoint(gated: Path) -> None:
    before = checkpoint_sha256(gated)
    with pytest.raises(FileExistsError, match="pass --force"):
        save(tiny_encoder(), gated, source=None)
    assert checkpoint_sha256(gated) == before
    save(tiny_encoder(), gated, source=None, force=True)
    assert checkpoint_sha256(gated) != before
    with pytest.raises(FileExistsError, match="not a checkpoint folder"):
        save(tiny_encoder(), gated.parent, source=None, force=True)
    assert [entry.name for entry in gated.parent.iterdir()] == ["gated"]


def test_a_failing_save_leaves_the_earlier_checkpoint_and_no_traces(
    gated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = checkpoint_sha256(gated)

    def fail(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("train.checkpoints.checkpoint.copy_companions", fail)
    with pytest.raises(OSError, match="disk full"):
        save(tiny_encoder(), gated, source=MINILM, force=True)
    assert checkpoint_sha256(gated) == before
    assert [entry.name for entry in gated.parent.iterdir()] == ["gated"]


def test_a_checkpoint_can_be_saved_over_its_own_source(gated: Path) -> None:
    shutil.copyfile(MINILM / "tokenizer.json", gated / "tokenizer.json")
    model = load(gated)
    save(model, gated, source=gated, force=True)
    assert (gated / "tokenizer.json").read_bytes() == (MINILM / "tokenizer.json").read_bytes()
    _assert_same_weights(load(gated), model)
