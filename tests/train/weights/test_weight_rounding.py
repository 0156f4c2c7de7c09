"""Compensated rounding: less error on the inputs it saw, on a grid that later quantizations find again."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.train.decoders import VOCABULARY, tiny_llama
from train.attention.settings import AttentionSettings
from train.conversion.convert import convert
from train.families.known_families import layers_of
from train.simulation.fake_quant import simulated
from train.simulation.quantizer import weight_grid
from train.weights.weight_rounding import round_weight_, round_weights


def _correlated(num_tokens: int = 400, features: int = 40, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_tokens, 8, generator=generator) @ torch.randn(8, features, generator=generator)


@pytest.mark.parametrize("bits", [4, 8])
def test_the_outputs_on_real_inputs_are_nearer_than_after_rounding_to_the_nearest_step(bits: int) -> None:
    x_NI, weight_OI = _correlated(), torch.randn(24, 40, generator=torch.Generator().manual_seed(1))
    levels = 2 ** (bits - 1) - 1
    step = weight_OI.abs().max().item() / levels
    x, w = x_NI.double().numpy(), weight_OI.double().numpy()
    nearest = np.square(x @ (np.round(w / step) * step - w).T).sum() / np.square(x @ w.T).sum()
    result = round_weight_(weight_OI, x_NI.T @ x_NI, bits=bits)
    compensated = np.square(x @ (weight_OI.double().numpy() - w).T).sum() / np.square(x @ w.T).sum()
    assert compensated < 0.3 * nearest
    assert result.nearest == pytest.approx(nearest, rel=1e-2)
    assert result.compensated == pytest.approx(compensated, rel=1e-2)


@pytest.mark.parametrize("seed", range(3))
def test_rounded_weights_stay_as_they_are_when_they_are_quantized(seed: int) -> None:
    x_NI, weight_OI = _correlated(seed=seed), torch.randn(24, 40, generator=torch.Generator().manual_seed(seed))
    round_weight_(weight_OI, x_NI.T @ x_NI)
    again_OI = weight_grid(weight_OI, bits=8, method="minmax").fake_quantize(weight_OI)
    torch.testing.assert_close(again_OI, weight_OI, rtol=1e-5, atol=0)


def test_a_huge_weight_whose_input_is_almost_nothing_is_clipped() -> None:
    x_NI, weight_OI = _correlated(), torch.randn(24, 40, generator=torch.Generator().manual_seed(1))
    x_NI[:, 7] *= 1e-4
    weight_OI[3, 7] = 30.0
    result = round_weight_(weight_OI, x_NI.T @ x_NI)
    assert result.range_share < 0.5
    assert weight_OI.abs().max() < 15.0


def test_an_input_that_is_always_zero_leaves_the_weight_alone() -> None:
    weight_OI = torch.randn(24, 40)
    before_OI = weight_OI.clone()
    assert round_weight_(weight_OI, torch.zeros(40, 40)).compensated == 0.0
    assert torch.equal(weight_OI, before_OI)


def test_every_block_weight_of_a_model_is_rounded_and_its_simulation_no_longer_rounds_weights() -> None:
    model = tiny_llama()
    convert(model, AttentionSettings())
    ids_BT = torch.randint(3, VOCABULARY, (4, 16), generator=torch.Generator().manual_seed(2))
    mask_BT = torch.ones_like(ids_BT)
    mask_BT[0, 9:] = 0
    batch = {"input_ids": ids_BT, "attention_mask": mask_BT}
    result = round_weights(model, [batch])
    assert len(result) == 2 * 7
    weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    with simulated(model, [batch], profile="tensorrt"):
        for layer in layers_of(model):
            for linear in layer.linears:
                name = next(name for name, module in model.named_modules() if module is linear)
                torch.testing.assert_close(linear.weight.detach(), weights[f"{name}.weight"], rtol=1e-5, atol=0)
