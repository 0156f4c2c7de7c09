"""Quantization-aware passes: rounded forward, straight gradients, no trace on the model."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedModel

from tests.train.encoders import last_hidden, padded_batch, randomize_gates, tiny_encoder
from train.attention.settings import AttentionSettings
from train.conversion.convert import convert
from train.simulation.fake_quant import simulated
from train.simulation.quantization_aware import QuantizationAware, straight_through
from train.simulation.quantization_places import ProfileName
from train.simulation.quantizer import activation_grid


def _model() -> PreTrainedModel:
    model = tiny_encoder()
    convert(model, AttentionSettings(gate="linear", gate_init=0.5, gate_scale=2.0))
    randomize_gates(model)
    return model


@given(bits=st.integers(2, 8), seed=st.integers(0, 50))
@settings(deadline=None)
def test_values_are_rounded_and_gradients_are_those_of_the_identity(bits: int, seed: int) -> None:
    x = torch.randn(40, generator=torch.Generator().manual_seed(seed), requires_grad=True)
    low, high = (float(value) for value in torch.aminmax(x.detach()))
    grid = activation_grid(low, high, bits=bits, symmetric=False)
    factors = torch.arange(40.0)
    rounded = straight_through(x, grid)
    torch.testing.assert_close(rounded.detach(), grid.fake_quantize(x.detach()), rtol=0, atol=1e-6)
    (gradient,) = torch.autograd.grad((rounded * factors).sum(), x)
    assert torch.equal(gradient, factors)


def _error(model: PreTrainedModel, batch: dict[str, torch.Tensor], float_BTD: torch.Tensor) -> float:
    keep = batch["attention_mask"].bool()
    return float((last_hidden(model, batch) - float_BTD)[keep].square().mean().sqrt())


@pytest.mark.parametrize("profile", ["paper", "tensorrt"])
def test_a_pass_is_as_far_from_float_as_the_simulation_of_the_same_width(profile: ProfileName) -> None:
    model, batch = _model(), padded_batch()
    float_BTD = last_hidden(model, batch)
    for bits in (6, 8, 16):
        aware = QuantizationAware(model, batch, profile=profile, weight_bits=bits, activation_bits=bits)
        with aware.rounding(batch["attention_mask"]):
            mine = _error(model, batch, float_BTD)
        with simulated(model, [batch], profile=profile, weight_bits=bits, activation_bits=bits):
            expected = _error(model, batch, float_BTD)
        # Ranges are taken from rounded values here and from float ones there: the same noise, not the same values.
        assert 0.5 * expected < mine < 2 * expected, f"{bits} bits"


def test_every_rounded_weight_gets_a_gradient_and_the_model_keeps_its_parameters() -> None:
    model, batch = _model(), padded_batch()
    before = {name: (id(parameter), parameter.detach().clone()) for name, parameter in model.named_parameters()}
    aware = QuantizationAware(model, batch, profile="paper")
    with aware.rounding(batch["attention_mask"]):
        model(**batch).last_hidden_state.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert id(parameter) == before[name][0]
        assert torch.equal(parameter, before[name][1])
        if "pooler" not in name:
            assert parameter.grad is not None, name
            assert torch.isfinite(parameter.grad).all()


def test_an_error_inside_leaves_the_float_model() -> None:
    model, batch = _model(), padded_batch()
    expected = last_hidden(model, batch)
    aware = QuantizationAware(model, batch, profile="paper")
    broken = {"input_ids": batch["input_ids"] + 1000, "attention_mask": batch["attention_mask"]}
    with pytest.raises(IndexError), aware.rounding(batch["attention_mask"]):
        model(**broken)
    assert torch.equal(last_hidden(model, batch), expected)
