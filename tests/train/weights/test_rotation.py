"""A rotated model computes the same logits, is saved with two embeddings, and has no channel that stands out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from tests.train.decoders import VOCABULARY, tiny_llama, tiny_opt
from train.attention.settings import AttentionSettings
from train.checkpoints.checkpoint import load, save
from train.conversion.convert import convert
from train.conversion.prefix_tokens import store_prefix
from train.families.known_families import layers_of
from train.simulation.fake_quant import simulated
from train.weights.linear_inputs import observe_linear_inputs
from train.weights.rotation import rotate


def _ids(seed: int = 0) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (6, 20), generator=torch.Generator().manual_seed(seed))


def _converted(*, prefix: bool, **changes: bool) -> PreTrainedModel:
    model = tiny_llama(**changes)
    convert(model, AttentionSettings())
    if prefix:
        store_prefix(model, [4, 6])
    return model


@torch.no_grad()
def _logits(model: PreTrainedModel) -> torch.Tensor:
    logits_BTV: torch.Tensor = model(input_ids=_ids()).logits
    return logits_BTV


@pytest.mark.parametrize("prefix", [False, True])
@pytest.mark.parametrize(
    "changes", [{}, {"attention_bias": True, "mlp_bias": True}, {"tie_word_embeddings": False}],
    ids=["bare", "biases", "untied"],
)  # fmt: skip
def test_a_rotation_changes_no_logit_and_survives_a_checkpoint(
    prefix: bool, changes: dict[str, bool], tmp_path: Path
) -> None:
    model = _converted(prefix=prefix, **changes)
    before, weight = _logits(model), layers_of(model)[0].query.weight.clone()
    rotate(model)
    assert (layers_of(model)[0].query.weight - weight).abs().max() > 0.1
    rotated = _logits(model)
    torch.testing.assert_close(rotated, before, atol=2e-4, rtol=2e-4)
    save(model, tmp_path / "checkpoint", source=None)
    assert torch.equal(_logits(load(tmp_path / "checkpoint")), rotated)


def test_a_channel_of_the_stream_that_dwarfs_the_others_is_spread_over_all() -> None:
    model, batch = _converted(prefix=False), {"input_ids": _ids()}
    with torch.no_grad():
        for layer in layers_of(model):
            for norm in (layer.attention_norm, layer.ffn_norm):
                norm.weight[3] *= 30.0  # type: ignore[operator, index]
            for linear in (layer.query.linear, layer.key.linear, layer.value.linear, *layer.ffn_in):
                linear.weight[:, 3] /= 30.0
    exact = _logits(model)

    def lost() -> float:
        with simulated(model, [batch], profile="tensorrt", method="minmax"):
            return float((_logits(model) - exact).norm() / exact.norm())

    before = lost()
    rotate(model)
    assert lost() < 0.5 * before
    for layer in layers_of(model):
        largest = observe_linear_inputs(model, [batch])[layer.query.linear].largest
        assert largest.max() < 3 * largest.median()


def test_models_that_no_rotation_passes_through_are_refused() -> None:
    opt = tiny_opt()
    with pytest.raises(ValueError, match="family 'opt' has others"):
        rotate(opt)
    gated = tiny_llama()
    convert(gated, AttentionSettings(gate="linear"))
    with pytest.raises(ValueError, match="has gates"):
        rotate(gated)
    bare = tiny_llama().base_model
    assert isinstance(bare, PreTrainedModel)
    with pytest.raises(ValueError, match="has none"):
        rotate(bare)
