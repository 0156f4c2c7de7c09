"""Simulated rounding, rounded updates and outlier metrics of causal models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from tests.train.decoders import DECODERS, VOCABULARY, tiny_llama, tiny_opt
from tests.train.encoders import randomize_gates
from train.attention.settings import AttentionSettings
from train.batches.text_batches import sequential_batches
from train.conversion.convert import convert
from train.families.known_families import final_norm_of, layers_of, norms_of
from train.observation.outliers import measure_outliers
from train.simulation.fake_quant import simulated
from train.simulation.quantization_aware import QuantizationAware

GATED = AttentionSettings(gate="linear", gate_scale=2.0)
every_family = pytest.mark.parametrize("family", DECODERS)


def _converted(family: str) -> PreTrainedModel:
    model = DECODERS[family]()
    convert(model, GATED)
    randomize_gates(model)
    return model


def _batches() -> list[dict[str, torch.Tensor]]:
    generator = np.random.default_rng(0)
    rows = [generator.integers(2, VOCABULARY, length) for length in (9, 5, 1, 8, 8, 3)]
    return sequential_batches(rows, batch_size=3, pad_id=1)


def _names(model: PreTrainedModel) -> dict[Any, str]:
    return {module: name for name, module in model.named_modules()}


def _logits(model: PreTrainedModel, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        logits_BTV = model(**batch).logits
    assert isinstance(logits_BTV, torch.Tensor)
    return logits_BTV


@every_family
def test_paper_rounds_every_tensor_of_a_block_and_leaves_the_tied_head_float(family: str) -> None:
    model = _converted(family)
    batches, state = _batches(), {name: x.clone() for name, x in model.state_dict().items()}
    before, head = _logits(model, batches[0]), model.get_submodule("lm_head").weight
    embeddings = model.get_input_embeddings()
    with simulated(model, batches, profile="paper") as simulation:
        rounded = _logits(model, batches[0])
        assert model.get_submodule("lm_head").weight is head
        assert embeddings.weight is not head
        assert torch.unique(embeddings.weight).numel() <= 255
    names = _names(model)
    expected = {f"{names[norm]}.{side}" for norm in norms_of(model) for side in ("input", "output")}
    for layer in layers_of(model):
        expected |= {f"{names[p.linear]}.output" for p in (layer.query, layer.key, layer.value)} | {
            f"{names[linear]}.output" for linear in (layer.output_projection, layer.ffn_out, *layer.ffn_in[1:])
        }
        if len(layer.ffn_in) > 1:
            expected.add(f"{names[layer.ffn_out]}.input")
        expected |= {f"{names[layer.attention]}.{site}" for site in ("gate", "scores", "probabilities", "context")}
        assert f"{names[layer.ffn_in[0]]}.output" not in simulation.activations
    assert expected <= set(simulation.activations)
    assert {f"{names[norm]}.weight" for norm in norms_of(model)} <= set(simulation.weights)
    assert not any(name.startswith("lm_head") for name in (*simulation.weights, *simulation.activations))
    keep = batches[0]["attention_mask"].bool()
    error = (rounded - before)[keep].abs().max() / before[keep].abs().max()
    assert 0 < error < 0.5, error
    assert torch.equal(_logits(model, batches[0]), before)
    assert all(torch.equal(x, state[name]) for name, x in model.state_dict().items())


@every_family
def test_tensorrt_rounds_what_enters_linear_layers_alone(family: str) -> None:
    model = _converted(family)
    with simulated(model, _batches(), profile="tensorrt") as simulation:
        pass
    names = _names(model)
    expected = {names[linear] for layer in layers_of(model) for linear in layer.linears}
    if family == "opt-post-norm":
        expected |= {"model.decoder.project_in", "model.decoder.project_out"}
    assert {name.removesuffix(".input") for name in simulation.activations} == expected
    assert {name.removesuffix(".weight") for name in simulation.weights} == expected


@pytest.mark.parametrize("family", ["opt", "llama"])
def test_a_rounded_sum_is_what_the_next_sum_reads_too(family: str) -> None:
    model, batches = _converted(family), _batches()
    layers, seen = layers_of(model), dict[str, torch.Tensor]()

    def keep_input(name: str, module: nn.Module) -> None:
        module.register_forward_pre_hook(lambda _module, args: seen.update({name: args[0].clone()}))

    def keep_output(name: str, module: nn.Module) -> None:
        module.register_forward_hook(lambda _module, _args, output: seen.update({name: output.clone()}))

    with simulated(model, batches, profile="paper") as simulation:
        keep_input("sum", layers[0].ffn_norm)
        keep_output("ffn", layers[0].ffn_out)
        keep_output("out", layers[0].layer)
        keep_input("next sum", layers[1].ffn_norm)
        keep_output("next attention", layers[1].output_projection)
        _logits(model, batches[0])
    grids = {
        norm: simulation.activations[f"{_names(model)[norm]}.input"]
        for norm in (layers[0].ffn_norm, layers[1].attention_norm, layers[1].ffn_norm)
    }
    assert torch.equal(grids[layers[0].ffn_norm].fake_quantize(seen["sum"]), seen["sum"])
    assert torch.equal(seen["out"].flatten(), (seen["sum"] + seen["ffn"]).flatten())
    stream = grids[layers[1].attention_norm].fake_quantize(seen["out"])
    expected = grids[layers[1].ffn_norm].fake_quantize(stream + seen["next attention"])
    assert torch.equal(seen["next sum"].flatten(), expected.flatten())


@every_family
def test_padding_on_either_side_is_left_out_of_the_ranges(family: str) -> None:
    model, (batch, _) = _converted(family), _batches()
    alone = [
        {"input_ids": ids[mask.bool()][None], "attention_mask": mask[mask.bool()][None]}
        for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
    ]
    left = {
        name: torch.stack(
            [torch.roll(row, int((mask == 0).sum())) for row, mask in zip(x, batch["attention_mask"], strict=True)]
        )
        for name, x in batch.items()
    }
    ranges = []
    for batches in (alone, [batch], [left]):
        with simulated(model, batches, profile="paper", method="minmax") as simulation:
            ranges.append({name: grid.scale for name, grid in simulation.activations.items() if "scores" not in name})
    for other in ranges[1:]:
        for name, scale in ranges[0].items():
            assert float(other[name]) == pytest.approx(float(scale), rel=1e-4), name


@every_family
def test_rounded_updates_reach_every_weight_of_the_layers(family: str) -> None:
    model, (batch, _) = _converted(family), _batches()
    aware = QuantizationAware(model, batch, profile="paper")
    with aware.rounding(batch["attention_mask"]):
        model(**batch).logits.square().mean().backward()
    for layer in layers_of(model):
        for name, parameter in layer.layer.named_parameters():
            assert parameter.grad is not None, name
            assert torch.isfinite(parameter.grad).all(), name
            assert parameter.grad.abs().max() > 0 or name.endswith("k_proj.bias"), name


def test_the_gradient_through_a_rounded_stream_is_the_float_one_where_the_grid_is_fine() -> None:
    batch, gradients = _batches()[0], []
    keep = batch["attention_mask"].bool()
    for bits in (None, 16):
        model = _converted("llama")
        if bits is None:
            model(**batch).logits[keep].square().mean().backward()
        else:
            aware = QuantizationAware(model, batch, profile="paper", weight_bits=bits, activation_bits=bits)
            with aware.rounding(batch["attention_mask"]):
                model(**batch).logits[keep].square().mean().backward()
        gradient = layers_of(model)[0].ffn_out.weight.grad
        assert gradient is not None
        gradients.append(gradient)
    error = (gradients[1] - gradients[0]).abs().max() / gradients[0].abs().max()
    assert error < 0.01, error


@pytest.mark.parametrize("family", ["opt", "llama"])
def test_a_massive_value_is_found_at_its_position_and_feature(family: str) -> None:
    model = DECODERS[family]()
    layer = layers_of(model)[0]

    def enlarge(_module: Any, _args: Any, output: torch.Tensor) -> torch.Tensor:
        output.view(3, -1, output.shape[-1])[:, 0, 5] = 900.0
        return output

    layer.ffn_out.register_forward_hook(enlarge)
    report = measure_outliers(model, _batches(), kinds=["ffn_output", "residual_sum.ffn"])
    found = {tensor.name: tensor for tensor in report.tensors}
    assert report.num_sequences == 6
    assert found["layer.0.ffn_output"].inf_norm == 900.0
    assert found["layer.1.residual_sum.ffn"].outliers_by_position.argmax() == 0
    assert found["layer.1.residual_sum.ffn"].outliers_by_feature.argmax() == 5


def test_norms_without_weights_have_none_to_round() -> None:
    model = tiny_opt(layer_norm_elementwise_affine=False)
    convert(model, AttentionSettings())
    with simulated(model, _batches()) as simulation:
        assert not any("norm" in name for name in simulation.weights)


def test_a_bare_decoder_leaves_its_last_norm_float() -> None:
    model = tiny_llama().base_model
    assert isinstance(model, PreTrainedModel)
    convert(model, AttentionSettings())
    final = _names(model)[final_norm_of(model)]
    with simulated(model, _batches()) as simulation:
        assert f"{final}.output" not in simulation.activations
