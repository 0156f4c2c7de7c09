"""Attention of vision transformers: against the untouched library models and against numpy in float64."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import PreTrainedModel

from tests.train.encoders import randomize_gates
from tests.train.vision import HEADS, VISION_FAMILIES, VISION_MODELS, image_batch, logits_of, tiny_vision
from train.attention.attention_sites import attention_sites
from train.attention.settings import AttentionSettings
from train.conversion.convert import convert, settings_of
from train.families.known_families import (
    LayerModules,
    family_of,
    hidden_size_of,
    layers_of,
    num_heads_of,
    patch_norm_of,
)

Array = NDArray[np.float64]

SOFTMAX: dict[str, dict[str, Any]] = {
    "vanilla": {},
    "clipped": {"softmax": "clipped", "alpha": 1.5, "length": 7, "zeta": 1.01},
    "clipped_per_row": {"softmax": "clipped_per_row", "alpha": 1.5},
    "off_by_one": {"softmax": "off_by_one"},
}
GATES: dict[str, dict[str, Any]] = {
    "none": {},
    "linear": {"gate": "linear", "gate_init": 0.25},
    "mlp": {"gate": "mlp", "gate_hidden": 3, "gate_scale": 2.0},
    "all_heads_linear": {"gate": "all_heads_linear", "gate_scale": 2.0},
}
FLOAT64_ATOL = 1e-12
"""Float64 rounding of values up to about 50."""


def converted(name: str, **settings: Any) -> PreTrainedModel:
    """A converted model whose gates and patch norm are away from their start."""
    model = tiny_vision(name)
    convert(model, AttentionSettings(**settings))
    randomize_gates(model)
    if (norm := patch_norm_of(model)) is not None:
        for parameter in norm.parameters():
            nn.init.normal_(parameter)
    return model


def weights_of(module: nn.Module) -> dict[str, Array]:
    return {name: value.detach().double().numpy() for name, value in module.state_dict().items()}


def reference_gate(settings: AttentionSettings, weights: dict[str, Array], hidden_BTD: Array) -> Array:
    """Gate product (B, T, H), head by head."""
    gates = []
    for head in range(HEADS):
        size = hidden_BTD.shape[-1] // HEADS
        own_BTd = hidden_BTD[..., head * size : (head + 1) * size]
        if settings.gate == "all_heads_linear":
            logit_BT = hidden_BTD @ weights["weight"][head]
        elif settings.gate == "mlp":
            bias_M = weights["hidden_bias"].reshape(HEADS, -1)[head]
            logit_BT = np.maximum(own_BTd @ weights["hidden_weight"][head].T + bias_M, 0) @ weights["weight"][head, 0]
        else:
            logit_BT = own_BTd @ weights["weight"][head, 0]
        gates.append(weights["scale"] / (1 + np.exp(-(logit_BT + weights["bias"][head]))))
    return np.stack(gates, axis=-1)


def reference_attention(settings: AttentionSettings, layer: LayerModules, hidden_BTD: Array) -> Array:
    """What the attention adds to the stream, (B, T, D), head by head."""
    projected = []
    for projection in (layer.query, layer.key, layer.value):
        assert projection.bias is not None
        projected.append(hidden_BTD @ projection.weight.detach().numpy().T + projection.bias.detach().numpy())
    size = hidden_BTD.shape[-1] // HEADS
    contexts = []
    for head in range(HEADS):
        q, k, v = (x[..., head * size : (head + 1) * size] for x in projected)
        exp = np.exp(q @ k.transpose(0, 2, 1) / math.sqrt(size))
        p = exp / (exp.sum(-1, keepdims=True) + (1.0 if settings.softmax == "off_by_one" else 0.0))
        if settings.softmax.startswith("clipped"):
            assert settings.alpha is not None
            gamma = -settings.alpha / (settings.length or p.shape[-1])
            p = np.clip((settings.zeta - gamma) * p + gamma, 0, 1)
        contexts.append(p @ v)
    context_BTHd = np.stack(contexts, axis=2)
    if settings.gate != "none":
        gate = layer.attention.get_submodule("gate")
        context_BTHd = context_BTHd * reference_gate(settings, weights_of(gate), hidden_BTD)[..., None]
    joined_BTD = context_BTHd.reshape(hidden_BTD.shape)
    output = weights_of(layer.output_projection)
    return joined_BTD @ output["weight"].T + output["bias"]


@pytest.mark.parametrize("name", VISION_MODELS)
@pytest.mark.parametrize("gate", ["none", "linear", "mlp", "all_heads_linear"])
def test_a_converted_model_starts_as_the_untouched_one(name: str, gate: str) -> None:
    own, batch = tiny_vision(name), image_batch()
    model = copy.deepcopy(own)
    scaled = {} if gate == "none" else {"gate": gate, "gate_scale": 2.0, "gate_hidden": 2 if gate == "mlp" else None}
    convert(model, AttentionSettings.from_dict(scaled))
    assert settings_of(model) == AttentionSettings.from_dict(scaled)
    # A normalised query is scaled before the scores, not inside the fused kernel.
    tolerance = 1e-5 if name == "timm-qk-norm" else 0.0
    torch.testing.assert_close(logits_of(model, batch), logits_of(own, batch), rtol=0, atol=tolerance)
    assert num_heads_of(model) == HEADS


@pytest.mark.parametrize("name", VISION_FAMILIES)
@pytest.mark.parametrize("patch_norm", [False, True])
def test_a_vanilla_model_from_scratch_takes_gates_keeps_its_patch_norm_and_puts_out_the_same(
    name: str, patch_norm: bool
) -> None:
    model = converted(name, patch_norm=patch_norm)
    before = logits_of(model, image_batch())
    convert(model, AttentionSettings(gate="linear", gate_scale=2.0))
    assert settings_of(model) == AttentionSettings(gate="linear", gate_scale=2.0, patch_norm=patch_norm)
    assert (patch_norm_of(model) is not None) == patch_norm
    assert torch.equal(logits_of(model, image_batch()), before)


@pytest.mark.parametrize("name", VISION_FAMILIES)
@pytest.mark.parametrize("softmax", SOFTMAX)
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("patch_norm", [False, True])
def test_every_variant_equals_the_float64_reference(name: str, softmax: str, gate: str, patch_norm: bool) -> None:
    model = converted(name, **SOFTMAX[softmax], **GATES[gate], patch_norm=patch_norm)
    model.double()
    settings = settings_of(model)
    assert settings is not None
    for layer in layers_of(model):
        seen: list[torch.Tensor] = []
        handle = layer.attention.register_forward_hook(lambda _module, args, output, seen=seen: seen.extend([args[0], output[0] if isinstance(output, tuple) else output]))  # fmt: skip
        with torch.no_grad():
            model(pixel_values=image_batch()["pixel_values"].double())
        handle.remove()
        expected = reference_attention(settings, layer, seen[0].numpy())
        np.testing.assert_allclose(seen[1].numpy(), expected, rtol=0, atol=FLOAT64_ATOL)


@pytest.mark.parametrize("name", VISION_MODELS)
def test_the_patch_norm_normalises_each_embedded_patch(name: str) -> None:
    model = converted(name, patch_norm=True)
    model.double()
    images_BCHW = image_batch()["pixel_values"].double()
    path = family_of(model).patch_embedding
    assert path is not None
    embedding = model.base_model.get_submodule(path)
    convolution = next(module for module in embedding.modules() if isinstance(module, nn.Conv2d))
    with torch.no_grad():
        found_BTD = embedding(images_BCHW).numpy()
    cut = images_BCHW.numpy().reshape(3, 3, 3, 4, 2, 4).transpose(0, 2, 4, 1, 3, 5).reshape(3, 6, -1)
    weights = weights_of(convolution)
    patches_BTD = cut @ weights["weight"].reshape(hidden_size_of(model), -1).T + weights.get("bias", 0.0)
    centred = patches_BTD - patches_BTD.mean(-1, keepdims=True)
    norm = patch_norm_of(model)
    assert isinstance(norm, nn.LayerNorm)
    own = weights_of(norm)
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + norm.eps) * own["weight"] + own["bias"]
    np.testing.assert_allclose(found_BTD, expected, rtol=0, atol=FLOAT64_ATOL)


@pytest.mark.parametrize("name", VISION_FAMILIES)
@pytest.mark.parametrize(
    "settings", [SOFTMAX["vanilla"] | GATES["mlp"], SOFTMAX["off_by_one"] | GATES["linear"], SOFTMAX["clipped"]]
)
def test_gradients_pass_gradcheck(name: str, settings: dict[str, Any]) -> None:
    model = converted(name, **settings)
    model.double()
    attention = layers_of(model)[0].attention
    generator = torch.Generator().manual_seed(1)
    hidden_BTD = torch.randn(1, 3, hidden_size_of(model), generator=generator, dtype=torch.float64, requires_grad=True)

    def added(x: torch.Tensor) -> torch.Tensor:
        output = attention(x)
        return output[0] if isinstance(output, tuple) else output  # type: ignore[no-any-return]

    assert torch.autograd.gradcheck(added, (hidden_BTD,))


@pytest.mark.parametrize("name", VISION_MODELS)
def test_fused_and_explicit_paths_agree(name: str) -> None:
    model, batch = converted(name, **GATES["mlp"]), image_batch()
    fused = logits_of(model, batch)
    with attention_sites([layer.attention for layer in layers_of(model)], lambda _layer, _site, tensor: tensor):
        explicit = logits_of(model, batch)
    torch.testing.assert_close(explicit, fused, rtol=0, atol=2e-5)


def test_dropout_of_probabilities_is_timms_own_and_off_in_evaluation() -> None:
    model, batch = converted("timm"), image_batch()
    before = logits_of(model, batch)
    for layer in layers_of(model):
        layer.attention.get_submodule("attn_drop").p = 0.5  # type: ignore[assignment]
    assert torch.equal(logits_of(model, batch), before)
    model.train()
    assert not torch.equal(logits_of(model, batch), before)
