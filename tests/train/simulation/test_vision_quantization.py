"""Named tensors, outliers, penalty and rounding on models that read pixels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tests.train.attention.test_vision_attention import GATES, converted
from tests.train.vision import HIDDEN, VISION_FAMILIES, VISION_MODELS, image_batch, logits_of, tiny_vision
from train.attention.settings import AttentionSettings
from train.conversion.convert import convert
from train.families.known_families import final_norm_of, layers_of, norms_of
from train.objectives.penalty import PenaltySettings, outlier_penalty
from train.observation.named_tensors import named_tensors
from train.observation.outliers import measure_outliers
from train.simulation.fake_quant import simulated
from train.simulation.quantization_aware import QuantizationAware
from train.weights.weight_limit import WeightLimit


@pytest.mark.parametrize("name", VISION_MODELS)
def test_named_tensors_satisfy_the_equations_of_the_block(name: str) -> None:
    model = tiny_vision(name)
    with torch.no_grad(), named_tensors(model) as tensors:
        model(**image_batch())
    assert len({x.shape for x in tensors.values()}) == 1
    layers = layers_of(model)
    stream = tensors["embedding_sum"]
    torch.testing.assert_close(layers[0].attention_norm(stream), tensors["embedding_ln_output"])
    for index, modules in enumerate(layers):
        x = {key.removeprefix(f"layer.{index}."): value for key, value in tensors.items() if f"layer.{index}." in key}
        scale1, scale2 = (getattr(modules.layer, part, nn.Identity()) for part in ("ls1", "ls2"))
        torch.testing.assert_close(x["residual_sum.attention"], stream + scale1(x["attention_output"]))
        torch.testing.assert_close(modules.ffn_norm(x["residual_sum.attention"]), x["ln_output.attention"])
        torch.testing.assert_close(x["residual_sum.ffn"], x["residual_sum.attention"] + scale2(x["ffn_output"]))
        stream = x["residual_sum.ffn"]
        norm = layers[index + 1].attention_norm if index + 1 < len(layers) else final_norm_of(model)
        if norm is None:
            assert name == "timm-no-class-token"
            assert "ln_output.ffn" not in x
        else:
            torch.testing.assert_close(norm(stream), x["ln_output.ffn"])


@pytest.mark.parametrize("name", VISION_FAMILIES)
def test_the_patch_norm_is_among_the_norms(name: str) -> None:
    model = converted(name, patch_norm=True)
    expected = {module for module in model.modules() if isinstance(module, nn.LayerNorm)}
    assert set(norms_of(model)) == expected
    assert len(norms_of(model)) == 6


@pytest.mark.parametrize("name", VISION_FAMILIES)
def test_outliers_are_found_at_the_patch_that_has_them(name: str) -> None:
    model = tiny_vision(name)
    layer = layers_of(model)[1]
    planted = 4

    def enlarge(_module: nn.Module, _args: object, output: torch.Tensor) -> torch.Tensor:
        output[:, planted, 7] = 500.0
        return output

    handle = layer.ffn_out.register_forward_hook(enlarge)
    report = measure_outliers(model, [image_batch(0), image_batch(1)], kinds=["ffn_output"])
    handle.remove()
    found = report.tensors[1]
    assert report.num_sequences == 6
    assert found.inf_norm == 500.0
    assert found.outliers_by_position.argmax() == planted
    assert found.outliers_by_feature.argmax() == 7
    assert not found.outliers_by_token


@pytest.mark.parametrize("name", VISION_FAMILIES)
@pytest.mark.parametrize("profile", ["paper", "tensorrt"])
def test_simulated_rounding_covers_the_patch_convolution_and_spares_the_classifier(name: str, profile: str) -> None:
    model, batch = converted(name, **GATES["linear"], patch_norm=True), image_batch()
    before, state = logits_of(model, batch), {key: x.clone() for key, x in model.state_dict().items()}
    assert profile in {"paper", "tensorrt"}
    with simulated(model, [image_batch(seed) for seed in range(3)], profile=profile) as simulation:  # type: ignore[arg-type]
        rounded = logits_of(model, batch)
    convolution = next(key for key, module in model.named_modules() if isinstance(module, nn.Conv2d))
    assert f"{convolution}.input" in simulation.activations
    assert f"{convolution}.weight" in simulation.weights
    assert (f"{convolution}.output" in simulation.activations) == (profile == "paper")
    classifier = "classifier" if name == "vit" else "timm_model.head"
    assert not any(key.startswith(classifier) for key in (*simulation.activations, *simulation.weights))
    error = (rounded - before).abs().max() / before.abs().max()
    assert 0 < error < 0.3, (
        error
    )  # large random weights: the reference for the size is the rounding of one layer, not of all
    assert torch.equal(logits_of(model, batch), before)
    assert all(torch.equal(x, state[key]) for key, x in model.state_dict().items())


def test_rounding_the_pixels_alone_equals_rounding_them_by_hand() -> None:
    model, batch = tiny_vision("vit"), image_batch()
    convert(model, AttentionSettings())
    with simulated(model, [batch], profile="tensorrt", activation_bits=8, method="minmax") as simulation:
        scale = float(batch["pixel_values"].abs().max()) / 127
        seen: list[torch.Tensor] = []
        convolution = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
        handle = convolution.register_forward_hook(lambda _module, args, _output: seen.append(args[0]))
        logits_of(model, batch)
        handle.remove()
        assert "vit.embeddings.patch_embeddings.projection.input" in simulation.activations
    expected = np.round(batch["pixel_values"].numpy() / scale) * scale
    np.testing.assert_allclose(seen[0].numpy(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", VISION_FAMILIES)
def test_rounded_updates_reach_the_patch_convolution_and_the_gates(name: str) -> None:
    model, batch = converted(name, **GATES["linear"]), image_batch()
    aware = QuantizationAware(model, batch, profile="paper")
    with aware.rounding(None):
        model(**batch).logits.square().sum().backward()
    for key, parameter in model.named_parameters():
        if "patch" in key or ".gate." in key or key.endswith(("qkv.weight", "q_proj.weight")):
            assert parameter.grad is not None, key
            assert parameter.grad.abs().max() > 0, key


@pytest.mark.parametrize("name", VISION_FAMILIES)
def test_the_penalty_pulls_at_patches(name: str) -> None:
    model = converted(name, **GATES["linear"])
    with named_tensors(model, kinds=["ffn_output", "ln_output.ffn", "ln_output.attention"]) as tensors:
        model(**image_batch())
        penalty = outlier_penalty(tensors, None, PenaltySettings(width=1.0))
    penalty.backward()  # type: ignore[no-untyped-call]
    assert penalty.item() > 0
    gradient = layers_of(model)[0].ffn_out.weight.grad
    assert gradient is not None
    assert gradient.abs().max() > 0


@pytest.mark.parametrize("name", VISION_FAMILIES)
def test_the_weight_limit_covers_fused_and_separate_projections(name: str) -> None:
    model = tiny_vision(name)
    layer = layers_of(model)[0]
    with torch.no_grad():
        layer.key.weight[0, 0] = 100.0
    WeightLimit(model, deviations=3.0, ramp_steps=0).clip_(1)
    assert layer.key.weight.abs().max().item() < 100.0
    assert layer.key.weight.shape == (HIDDEN, HIDDEN)
