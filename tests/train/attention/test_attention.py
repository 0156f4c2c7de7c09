"""The attention function against transformers' own, against numpy in float64, and its masks."""

from __future__ import annotations

import copy
import math
from typing import get_args

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoModel, PreTrainedModel
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function

from tests.train.encoders import (
    MINILM,
    VARIANTS,
    last_hidden,
    padded_batch,
    randomize_gates,
    tiny_encoder,
)
from train.attention.attention_sites import SiteName, attention_sites
from train.attention.quiet_attention import MASK_VALUE, attach_attention, bounded_mask, quiet_attention
from train.attention.settings import AttentionSettings
from train.conversion.convert import convert
from train.families.known_families import layers_of

FLOAT32_ATOL = 5e-5
"""Float32 rounding through two layers whose values reach about 5."""


def _converted(variant: str, *, dropout: float | None = None) -> PreTrainedModel:
    model = tiny_encoder(dropout=dropout)
    convert(model, VARIANTS[variant])
    randomize_gates(model)
    return model


def _attentions(model: PreTrainedModel) -> list[nn.Module]:
    return [layer.attention for layer in layers_of(model)]


def _reference_context(
    settings: AttentionSettings, q: np.ndarray, k: np.ndarray, v: np.ndarray, keep: np.ndarray
) -> np.ndarray:
    """Context (B, T, H, d) in float64, with masked keys taken out instead of pushed down."""
    B, H, T, d = q.shape
    context = np.zeros((B, T, H, d))
    for b in range(B):
        keys = keep[b].nonzero()[0]
        scores = q[b] @ k[b][:, keys].transpose(0, 2, 1) / math.sqrt(d)
        exp = np.exp(scores)
        extra = 1.0 if settings.softmax == "off_by_one" else 0.0
        p = exp / (extra + exp.sum(-1, keepdims=True))
        if settings.softmax == "clipped":
            p = np.clip((settings.zeta - settings.clip_gamma) * p + settings.clip_gamma, 0, 1)
        if settings.softmax == "clipped_per_row":
            assert settings.alpha is not None
            gamma = -settings.alpha / len(keys)
            p = np.clip((settings.zeta - gamma) * p + gamma, 0, 1)
        context[b] = (p @ v[b][:, keys]).transpose(1, 0, 2)
    return context


@pytest.mark.parametrize("variant", [name for name in VARIANTS if "gate" not in name])
def test_every_softmax_kind_equals_the_float64_reference(variant: str) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, 6, 4, generator=generator, dtype=torch.float64) * 2 for _ in range(3))
    keep = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]], dtype=torch.bool)
    module = nn.Module()
    attach_attention(module, VARIANTS[variant], None)
    gate_BTH = torch.rand(2, 6, 3, generator=generator, dtype=torch.float64)
    context, _ = quiet_attention(module, q, k, v, keep[:, None, None, :], quiet_gate=gate_BTH)
    expected = _reference_context(VARIANTS[variant], q.numpy(), k.numpy(), v.numpy(), keep.numpy())
    np.testing.assert_allclose(context, expected * gate_BTH.numpy()[..., None], atol=1e-13)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_vanilla_equals_transformers_own_attention_on_minilm(implementation: str) -> None:
    batch = padded_batch(vocab_size=30_000)
    own = AutoModel.from_pretrained(MINILM, attn_implementation=implementation).eval()
    ours = copy.deepcopy(own)
    convert(ours, AttentionSettings())
    keep = batch["attention_mask"].bool()
    difference = (last_hidden(ours, batch) - last_hidden(own, batch))[keep].abs().max()
    assert difference <= (0.0 if implementation == "sdpa" else 1e-5), difference
    if implementation == "eager":
        with attention_sites(_attentions(ours), lambda _layer, _site, tensor: tensor):
            assert torch.equal(last_hidden(ours, batch), last_hidden(own, batch))


@pytest.mark.parametrize("kind", ["linear", "mlp", "all_heads_linear"])
@pytest.mark.parametrize("init", [0.5, 0.3])
def test_gates_that_start_at_one_leave_minilm_bit_for_bit_unchanged(kind: str, init: float) -> None:
    batch = padded_batch(vocab_size=30_000)
    model = AutoModel.from_pretrained(MINILM).eval()
    before = last_hidden(model, batch)
    hidden = 4 if kind == "mlp" else None
    convert(
        model,
        AttentionSettings.from_dict({"gate": kind, "gate_hidden": hidden, "gate_init": init, "gate_scale": 1 / init}),
    )
    assert torch.equal(last_hidden(model, batch), before)


@pytest.mark.parametrize("variant", VARIANTS)
def test_fused_and_explicit_paths_agree(variant: str) -> None:
    model, batch = _converted(variant), padded_batch()
    fused = last_hidden(model, batch)
    with attention_sites(_attentions(model), lambda _layer, _site, tensor: tensor):
        explicit = last_hidden(model, batch)
    torch.testing.assert_close(explicit, fused, rtol=0, atol=FLOAT32_ATOL)


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_padding_holds_never_changes_a_row(variant: str) -> None:
    model, batch = _converted(variant), padded_batch()
    keep = batch["attention_mask"].bool()
    before = last_hidden(model, batch)
    other = {**batch, "input_ids": torch.where(keep, batch["input_ids"], 49)}
    assert torch.equal(last_hidden(model, other)[keep], before[keep])


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_row_alone_and_unpadded_equals_the_row_in_a_padded_batch(variant: str) -> None:
    model, batch = _converted(variant), padded_batch()
    together = last_hidden(model, batch)
    for row, length in enumerate((9, 5, 1)):
        alone = last_hidden(model, {"input_ids": batch["input_ids"][row : row + 1, :length]})
        torch.testing.assert_close(alone[0], together[row, :length], rtol=0, atol=FLOAT32_ATOL)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_fully_padded_row_is_finite_and_leaves_the_others_alone(variant: str) -> None:
    model, batch = _converted(variant), padded_batch()
    before = last_hidden(model, batch)
    batch["attention_mask"][2] = 0
    after = last_hidden(model, batch)
    assert torch.isfinite(after).all()
    assert torch.equal(after[:1], before[:1])


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_training_step_gives_finite_gradients_to_every_parameter_of_the_encoder(variant: str) -> None:
    model = _converted(variant, dropout=0.1)
    model.train()
    model(**padded_batch()).last_hidden_state.square().mean().backward()
    for name, parameter in model.get_submodule("encoder").named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name


def test_gradient_checkpointing_gives_the_same_gradients() -> None:
    gradients = []
    for checkpointing in (False, True):
        model = _converted("clipped-and-gated", dropout=0.0)
        model.train()
        if checkpointing:
            model.activation_checkpointing_enable()
        model(**padded_batch()).last_hidden_state.square().mean().backward()
        gradients.append(model.get_parameter("encoder.layer.0.attention.self.gate.weight").grad)
    assert gradients[0] is not None
    torch.testing.assert_close(gradients[0], gradients[1])


def test_sites_see_every_point_once_per_layer_and_their_results_are_used() -> None:
    model, batch = _converted("gate-mlp"), padded_batch()
    shapes: dict[tuple[int, SiteName], tuple[int, ...]] = {}

    def silence_last_context(layer: int, site: SiteName, tensor: torch.Tensor) -> torch.Tensor:
        assert (layer, site) not in shapes
        shapes[layer, site] = tuple(tensor.shape)
        return torch.zeros_like(tensor) if (layer, site) == (1, "context") else tensor

    before = last_hidden(model, batch)
    with attention_sites(_attentions(model), silence_last_context):
        silenced = last_hidden(model, batch)
    assert torch.equal(last_hidden(model, batch), before)
    assert not torch.allclose(silenced, before)
    assert set(shapes) == {(layer, site) for layer in (0, 1) for site in get_args(SiteName)}
    assert shapes[0, "scores"] == shapes[0, "probabilities"] == (3, 3, 9, 9)
    assert shapes[0, "values"] == (3, 3, 9, 8)
    assert shapes[0, "mask"] == (3, 1, 1, 9)
    assert shapes[0, "context"] == shapes[0, "values_mixed"] == (3, 9, 3, 8)


def test_scores_are_seen_before_the_mask_and_probabilities_after_the_clip() -> None:
    model, batch = _converted("clipped-gamma"), padded_batch()
    seen: dict[SiteName, torch.Tensor] = {}
    with attention_sites(_attentions(model), lambda _layer, site, tensor: seen.setdefault(site, tensor)):
        last_hidden(model, batch)
    assert seen["scores"].min() > MASK_VALUE / 2
    assert (seen["probabilities"] == 0).any()
    assert not seen["probabilities"][1, :, :, 5:].any()


def test_the_mask_is_bounded_and_absent_where_nothing_is_masked() -> None:
    keep = torch.tensor([[True, True, False], [True, True, True]])
    mask = bounded_mask(2, 3, 3, mask_function=bidirectional_mask_function, attention_mask=keep)
    assert mask is not None
    assert mask[:, 0, 0].tolist() == [[0.0, 0.0, MASK_VALUE], [0.0, 0.0, 0.0]]
    skip = bounded_mask(
        1, 3, 3, mask_function=bidirectional_mask_function, attention_mask=keep[1:], allow_is_bidirectional_skip=True
    )
    assert skip is None


def test_a_causal_mask_is_written_out() -> None:
    mask = bounded_mask(1, 3, 3, mask_function=causal_mask_function)
    assert mask is not None
    assert (mask[0, 0] == 0).tolist() == torch.ones(3, 3).tril().bool().tolist()


@pytest.mark.parametrize("variant", ["gate-mlp", "clipped-per-row", "off-by-one-and-gated"])
def test_a_converted_model_is_exportable_with_dynamic_batch_and_length(variant: str) -> None:
    model, batch = _converted(variant), padded_batch()
    batch_size, length = torch.export.Dim("batch"), torch.export.Dim("length", max=32)
    shapes = {name: {0: batch_size, 1: length} for name in batch}
    program = torch.export.export(model, (), batch, dynamic_shapes=shapes)
    other = {name: tensor[:2, :5] for name, tensor in padded_batch(3).items()}
    exported = program.module()(**other).last_hidden_state
    torch.testing.assert_close(exported, last_hidden(model, other), rtol=0, atol=FLOAT32_ATOL)
