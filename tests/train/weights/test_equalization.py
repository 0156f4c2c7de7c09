"""Moved scales: the same function, smaller ranges, less lost to per-tensor integers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from tests.train.decoders import VOCABULARY, tiny_llama, tiny_opt
from train.attention.settings import AttentionSettings
from train.conversion.convert import convert
from train.conversion.prefix_tokens import store_prefix
from train.families.known_families import layers_of
from train.simulation.fake_quant import simulated
from train.weights.equalization import equalize
from train.weights.linear_inputs import observe_linear_inputs


def _batch(seed: int = 0) -> dict[str, torch.Tensor]:
    ids_BT = torch.randint(3, VOCABULARY, (6, 20), generator=torch.Generator().manual_seed(seed))
    mask_BT = torch.ones_like(ids_BT)
    mask_BT[0, 12:] = 0
    return {"input_ids": ids_BT, "attention_mask": mask_BT}


def _uneven(*, prefix: bool, **changes: Any) -> PreTrainedModel:
    """A model in which single channels dwarf the others: of norms, of inner units and of values."""
    model = tiny_llama(**changes)
    convert(model, AttentionSettings())
    with torch.no_grad():
        for layer in layers_of(model):
            for norm in (layer.attention_norm, layer.ffn_norm):
                norm.weight[3] *= 30.0  # type: ignore[operator, index]
            for linear in (layer.query.linear, layer.key.linear, layer.value.linear, *layer.ffn_in):
                linear.weight[:, 3] /= 30.0
            layer.ffn_in[1].weight[5] *= 40.0
            layer.ffn_out.weight[:, 5] /= 40.0
            layer.value.weight[2] *= 20.0
            for head in range(2):  # two query heads read the first value head
                layer.output_projection.weight[:, head * 8 + 2] /= 20.0
    if prefix:
        store_prefix(model, [4, 6])
    return model


@torch.no_grad()
def _logits(model: PreTrainedModel, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    logits_BTV: torch.Tensor = model(**batch).logits
    return logits_BTV[batch["attention_mask"].bool()]


def _lost(model: PreTrainedModel, batch: dict[str, torch.Tensor]) -> float:
    exact = _logits(model, batch)
    with simulated(model, [batch], profile="tensorrt", method="minmax"):
        rounded = _logits(model, batch)
    return float((rounded - exact).norm() / exact.norm())


@pytest.mark.parametrize("prefix", [False, True])
@pytest.mark.parametrize("biases", [{}, {"attention_bias": True, "mlp_bias": True}], ids=["bare", "biases"])
def test_equalization_changes_no_output_and_makes_integers_better(prefix: bool, biases: dict[str, bool]) -> None:
    model, unseen = _uneven(prefix=prefix, **biases), _batch(seed=1)
    before, lost = _logits(model, unseen), _lost(model, unseen)
    choices = equalize(model, [_batch()])
    torch.testing.assert_close(_logits(model, unseen), before, atol=2e-4, rtol=2e-4)
    assert len(choices) == 2 * 4
    assert all(choice.error_after <= choice.error_before for choice in choices.values())
    assert _lost(model, unseen) < 0.6 * lost


def test_the_planted_channels_no_longer_set_the_ranges() -> None:
    model, batch = _uneven(prefix=False), _batch()
    equalize(model, [batch])
    inputs = observe_linear_inputs(model, [batch])
    for layer in layers_of(model):
        for linear in (layer.query.linear, layer.output_projection, layer.ffn_in[0], layer.ffn_out):
            largest = inputs[linear].largest
            assert largest.max() < 12 * largest.median()


def test_padding_is_not_observed() -> None:
    model, batch = _uneven(prefix=False), _batch()
    other = {**batch, "input_ids": batch["input_ids"].where(batch["attention_mask"].bool(), 7)}
    one, two = (observe_linear_inputs(model, [inputs], moments=True) for inputs in (batch, other))
    for linear, entry in one.items():
        torch.testing.assert_close(entry.moments, two[linear].moments)
        torch.testing.assert_close(entry.sample, two[linear].sample)
    assert entry.sample.shape[0] == int(batch["attention_mask"].sum())


def test_models_whose_scales_cannot_be_moved_are_refused() -> None:
    with pytest.raises(ValueError, match="family 'opt' has others"):
        equalize(tiny_opt(), [_batch()])
    gated = tiny_llama()
    convert(gated, AttentionSettings(gate="linear"))
    with pytest.raises(ValueError, match="has gates"):
        equalize(gated, [_batch()])
    with pytest.raises(ValueError, match="no text"):
        equalize(tiny_llama(), [])
