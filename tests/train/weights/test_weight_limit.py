from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from transformers import BertConfig, BertModel

from train.families.known_families import layers_of
from train.retrofitting.retrofit_settings import RetrofitSettings
from train.weights.weight_limit import WeightLimit


@pytest.fixture
def model() -> BertModel:
    torch.manual_seed(0)
    config = BertConfig(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
    return BertModel(config)


def test_the_limit_falls_geometrically_to_its_value_over_the_ramp(model: BertModel) -> None:
    limit = WeightLimit(model, deviations=4.0, ramp_steps=6)
    values = [limit.at_step(step) for step in range(12)]
    assert values[5:] == [4.0] * 7
    ratios = [after / before for before, after in pairwise(values[:6])]
    assert ratios == pytest.approx([ratios[0]] * 5)
    assert ratios[0] < 1


def test_only_weights_beyond_the_limit_are_changed(model: BertModel) -> None:
    weight = layers_of(model)[1].ffn_out.weight
    with torch.no_grad():
        weight[0, 0] = 100.0 * weight.std()
    before, deviation = weight.detach().clone(), float(weight.detach().std())
    others = {name: value.clone() for name, value in model.state_dict().items() if "LayerNorm" in name or "emb" in name}
    WeightLimit(model, deviations=8.0, ramp_steps=1).clip_(0)
    assert float(weight.detach()[0, 0]) == pytest.approx(8.0 * deviation)
    changed = weight.detach() != before
    assert changed.sum() == 1
    assert all(torch.equal(model.state_dict()[name], value) for name, value in others.items())


def test_a_limit_that_would_cut_ordinary_weights_is_refused() -> None:
    with pytest.raises(ValueError, match="weight_limit is 2"):
        RetrofitSettings(weight_limit=2.0)
