"""Attention of causal families, every softmax kind with every gate kind, against numpy in float64 and against itself."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel, StaticCache

from tests.train.decoders import DECODERS, VOCABULARY, tiny_llama
from tests.train.encoders import randomize_gates
from train.attention.attention_sites import attention_sites
from train.attention.gates import AllHeadsLinearGate, LinearGate, MlpGate
from train.attention.settings import AttentionSettings
from train.checkpoints.checkpoint import load, save
from train.conversion.convert import convert
from train.families.known_families import LayerModules, layers_of

SOFTMAX_KINDS: dict[str, dict[str, Any]] = {
    "vanilla": {},
    "clipped": {"softmax": "clipped", "gamma": -0.08},
    "clipped_per_row": {"softmax": "clipped_per_row", "alpha": 0.6, "zeta": 1.01},
    "off_by_one": {"softmax": "off_by_one"},
}
GATE_KINDS: dict[str, dict[str, Any]] = {
    "none": {},
    "linear": {"gate": "linear", "gate_init": 0.25, "gate_scale": 4.0},
    "mlp": {"gate": "mlp", "gate_hidden": 3, "gate_init": 0.3, "gate_scale": 1 / 0.3},
    "all_heads_linear": {"gate": "all_heads_linear", "gate_scale": 2.0},
}
VARIANTS = {
    f"{softmax}-{gate}": AttentionSettings.from_dict({**SOFTMAX_KINDS[softmax], **GATE_KINDS[gate]})
    for softmax, gate in itertools.product(SOFTMAX_KINDS, GATE_KINDS)
}
FLOAT32_ATOL = 1e-3
"""Float32 rounding through two layers and a head whose logits reach about 50."""

every_family = pytest.mark.parametrize("family", DECODERS)
every_variant = pytest.mark.parametrize("variant", VARIANTS)


def _converted(family: str, variant: str) -> PreTrainedModel:
    model = DECODERS[family]()
    convert(model, VARIANTS[variant])
    randomize_gates(model)
    return model


def _ids(rows: int = 3, length: int = 9) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(5))


def _padded(side: str, lengths: tuple[int, ...] = (9, 5, 1)) -> dict[str, torch.Tensor]:
    ids_BT = _ids(len(lengths), max(lengths))
    mask_BT = torch.zeros_like(ids_BT)
    for row, length in enumerate(lengths):
        if side == "right":
            mask_BT[row, :length] = 1
        else:
            mask_BT[row, ids_BT.shape[1] - length :] = 1
    return {"input_ids": ids_BT, "attention_mask": mask_BT}


def _logits(model: PreTrainedModel, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        logits_BTV = model(**batch).logits
    assert isinstance(logits_BTV, torch.Tensor)
    return logits_BTV


def _reference_gate(gate: nn.Module, hidden_TD: np.ndarray, num_heads: int) -> np.ndarray:
    """(T, H): head by head, each reading its own slice of the hidden state."""
    values = {name: tensor.detach().numpy() for name, tensor in gate.state_dict().items()}
    size = hidden_TD.shape[1] // num_heads
    logits_TH = np.zeros((len(hidden_TD), num_heads))
    for head in range(num_heads):
        own_Td = hidden_TD[:, head * size : (head + 1) * size]
        if isinstance(gate, LinearGate):
            logits_TH[:, head] = own_Td @ values["weight"][head, 0]
        elif isinstance(gate, MlpGate):
            width = values["hidden_weight"].shape[1]
            bias = values["hidden_bias"][head * width : (head + 1) * width]
            logits_TH[:, head] = (
                np.maximum(own_Td @ values["hidden_weight"][head].T + bias, 0) @ values["weight"][head, 0]
            )
        else:
            assert isinstance(gate, AllHeadsLinearGate)
            logits_TH[:, head] = hidden_TD @ values["weight"][head]
    logits_TH += values["bias"]
    return np.asarray(float(values["scale"]) / (1 + np.exp(-logits_TH)))


def _rotated(x_Td: np.ndarray, angles: tuple[np.ndarray, np.ndarray] | None) -> np.ndarray:
    if angles is None:
        return x_Td
    half = x_Td.shape[1] // 2
    cos_Td, sin_Td = angles
    turned = np.concatenate([-x_Td[:, half:], x_Td[:, :half]], axis=1)
    rotated: np.ndarray = x_Td * cos_Td + turned * sin_Td
    return rotated


def _reference_attention(
    layer: LayerModules,
    settings: AttentionSettings,
    hidden_TD: np.ndarray,
    keep_T: np.ndarray,
    *,
    angles: tuple[np.ndarray, np.ndarray] | None,
    head_size: int,
) -> np.ndarray:
    """Output of the attention block for one sequence, token by token and head by head, NaN where a token is padding."""

    def project(linear: nn.Linear, x: np.ndarray) -> np.ndarray:
        bias: torch.Tensor | None = linear.bias
        result: np.ndarray = x @ linear.weight.detach().numpy().T
        return result if bias is None else result + bias.detach().numpy()

    q, k, v = (project(p.linear, hidden_TD) for p in (layer.query, layer.key, layer.value))
    num_heads, num_groups = q.shape[1] // head_size, k.shape[1] // head_size
    context_TD = np.full_like(q, np.nan)
    for head, token in itertools.product(range(num_heads), np.flatnonzero(keep_T)):
        group = head // (num_heads // num_groups)
        own, shared = slice(head * head_size, (head + 1) * head_size), slice(group * head_size, (group + 1) * head_size)
        keys = [s for s in range(token + 1) if keep_T[s]]
        queries_Td, keys_Sd = _rotated(q[:, own], angles), _rotated(k[:, shared], angles)
        e = np.exp(keys_Sd[keys] @ queries_Td[token] / math.sqrt(head_size))
        p = e / (e.sum() + (1.0 if settings.softmax == "off_by_one" else 0.0))
        if settings.softmax == "clipped":
            p = np.clip((settings.zeta - settings.clip_gamma) * p + settings.clip_gamma, 0, 1)
        if settings.softmax == "clipped_per_row":
            assert settings.alpha is not None
            gamma = -settings.alpha / len(keys)
            p = np.clip((settings.zeta - gamma) * p + gamma, 0, 1)
        context_TD[token, own] = p @ v[keys][:, shared]
    if settings.gate != "none":
        assert isinstance(layer.attention.gate, nn.Module)
        context_TD *= np.repeat(_reference_gate(layer.attention.gate, hidden_TD, num_heads), head_size, axis=1)
    return project(layer.output_projection, context_TD)


@every_family
@every_variant
def test_every_variant_equals_the_float64_reference_at_any_padding(family: str, variant: str) -> None:
    model = _converted(family, variant).double()
    seen: list[tuple[dict[str, Any], torch.Tensor]] = []
    layer = layers_of(model)[1]
    layer.attention.register_forward_hook(lambda _m, _a, kw, out: seen.append((kw, out[0])), with_kwargs=True)
    for batch in ({"input_ids": _ids()}, _padded("right"), _padded("left", (7, 9, 2))):
        seen.clear()
        _logits(model, batch)
        ((kwargs, output_BTD),) = seen
        keep_BT = batch.get("attention_mask", torch.ones_like(batch["input_ids"])).bool().numpy()
        angles = kwargs.get("position_embeddings")
        head_size = model.config.hidden_size // model.config.num_attention_heads
        for row, keep_T in enumerate(keep_BT):
            expected_TD = _reference_attention(
                layer,
                VARIANTS[variant],
                kwargs["hidden_states"][row].numpy(),
                keep_T,
                angles=None if angles is None else (angles[0][0].numpy(), angles[1][0].numpy()),
                head_size=head_size,
            )
            np.testing.assert_allclose(output_BTD[row].numpy()[keep_T], expected_TD[keep_T], atol=1e-11)


@every_family
@every_variant
def test_fused_and_explicit_paths_agree(family: str, variant: str) -> None:
    model = _converted(family, variant)
    for batch in ({"input_ids": _ids()}, _padded("left")):
        keep = batch.get("attention_mask", torch.ones_like(batch["input_ids"])).bool()
        fused = _logits(model, batch)
        with attention_sites([layer.attention for layer in layers_of(model)], lambda _layer, _site, tensor: tensor):
            explicit = _logits(model, batch)
        torch.testing.assert_close(explicit[keep], fused[keep], rtol=0, atol=FLOAT32_ATOL)


@every_family
@pytest.mark.parametrize("gate", ["linear", "mlp", "all_heads_linear"])
def test_gates_that_start_at_one_leave_every_logit_bit_for_bit_unchanged(family: str, gate: str) -> None:
    model = DECODERS[family]()
    batches = ({"input_ids": _ids()}, _padded("right"), _padded("left"))
    before = [_logits(model, batch) for batch in batches]
    convert(model, VARIANTS[f"vanilla-{gate}"])
    for batch, logits_BTV in zip(batches, before, strict=True):
        keep = batch.get("attention_mask", torch.ones_like(batch["input_ids"])).bool()
        assert torch.equal(_logits(model, batch)[keep], logits_BTV[keep])


@every_family
@every_variant
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_row_alone_equals_the_row_in_a_padded_batch_and_padding_content_is_never_read(
    family: str, variant: str, side: str
) -> None:
    model, batch = _converted(family, variant), _padded(side)
    keep = batch["attention_mask"].bool()
    together = _logits(model, batch)
    for row in range(3):
        alone = _logits(model, {"input_ids": batch["input_ids"][row : row + 1, keep[row]]})
        torch.testing.assert_close(alone[0], together[row, keep[row]], rtol=0, atol=FLOAT32_ATOL)
    other = {**batch, "input_ids": torch.where(keep, batch["input_ids"], 2)}
    assert torch.equal(_logits(model, other)[keep], together[keep])
    batch["attention_mask"][2] = 0
    silenced = _logits(model, batch)
    assert torch.isfinite(silenced).all()
    assert torch.equal(silenced[:1][keep[:1]], together[:1][keep[:1]])


@every_family
@every_variant
def test_decoding_with_a_cache_gives_the_logits_of_the_full_forward(family: str, variant: str) -> None:
    model = _converted(family, variant)
    for batch in ({"input_ids": _ids()}, _padded("left", (9, 7, 6))):
        mask = batch.get("attention_mask")
        keep = torch.ones_like(batch["input_ids"]).bool() if mask is None else mask.bool()
        full = _logits(model, batch)
        cache, pieces, done = DynamicCache(config=model.config), [], 0
        for size in (4, 1, 1, 3):  # the first tokens at once, two alone, and several after others
            piece = {"input_ids": batch["input_ids"][:, done : done + size]}
            if mask is not None:
                piece["attention_mask"] = mask[:, : done + size]
            with torch.no_grad():
                pieces.append(model(**piece, cache=cache, use_cache=True).logits)
            done += size
        torch.testing.assert_close(torch.cat(pieces, dim=1)[keep], full[keep], rtol=0, atol=FLOAT32_ATOL)


@every_family
@pytest.mark.parametrize("variant", ["off_by_one-linear", "clipped_per_row-mlp"])
def test_a_cache_of_fixed_size_changes_no_logit(family: str, variant: str) -> None:
    model, ids = _converted(family, variant), _ids()
    full = _logits(model, {"input_ids": ids})
    cache = StaticCache(config=model.config, max_cache_len=16)
    with torch.no_grad():
        first = model(input_ids=ids[:, :5], cache=cache, use_cache=True).logits
        rest = [model(input_ids=ids[:, t : t + 1], cache=cache, use_cache=True).logits for t in range(5, 9)]
    torch.testing.assert_close(torch.cat([first, *rest], dim=1), full, rtol=0, atol=FLOAT32_ATOL)


@every_family
@pytest.mark.parametrize("variant", ["vanilla-linear", "clipped_per_row-all_heads_linear"])
def test_generation_gives_the_same_tokens_with_and_without_a_cache(family: str, variant: str) -> None:
    model, batch = _converted(family, variant), _padded("left", (6, 4, 2))
    settings = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False, "pad_token_id": 1}
    with_cache, without = (
        model.generate(**batch, **settings, use_cache=cached)  # type: ignore[operator]
        for cached in (True, False)
    )
    assert torch.equal(with_cache, without)


@pytest.mark.parametrize("family", ["opt", "llama"])
@every_variant
def test_gradients_of_the_attention_block_equal_finite_differences(family: str, variant: str) -> None:
    model = _converted(family, variant).double()
    attention = layers_of(model)[0].attention
    hidden_BTD = torch.randn(2, 4, model.config.hidden_size, dtype=torch.float64, requires_grad=True)
    keywords = {}
    if family == "llama":
        keywords["position_embeddings"] = model.base_model.get_submodule("rotary_emb")(
            hidden_BTD, torch.arange(4)[None]
        )
    keep = torch.ones(4, 4, dtype=torch.bool).tril().expand(2, 1, 4, 4).clone()
    keep[1, :, :, 0] = False
    for mask in (None, keep):
        assert torch.autograd.gradcheck(
            lambda hidden, mask=mask: attention(hidden_states=hidden, attention_mask=mask, **keywords)[0],
            hidden_BTD,
            fast_mode=True,
        )


@every_family
@every_variant
def test_a_saved_model_comes_back_bit_for_bit(family: str, variant: str, tmp_path: Path) -> None:
    model, batch = _converted(family, variant), _padded("left")
    save(model, tmp_path / "checkpoint", source=None)
    again = load(tmp_path / "checkpoint")
    assert type(again) is type(model)
    assert again.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in model.state_dict().items())
    assert torch.equal(_logits(again, batch), _logits(model, batch))


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@every_family
def test_vanilla_equals_transformers_own_attention(family: str, implementation: str) -> None:
    own, ours = DECODERS[family](), DECODERS[family]()
    own.set_attn_implementation(implementation)
    convert(ours, AttentionSettings())
    for batch in ({"input_ids": _ids()}, _padded("left"), _padded("right")):
        keep = batch.get("attention_mask", torch.ones_like(batch["input_ids"])).bool()
        difference = (_logits(ours, batch) - _logits(own, batch))[keep].abs().max()
        assert difference <= (0.0 if implementation == "sdpa" else FLOAT32_ATOL), difference


def test_heads_in_groups_see_their_keys_without_a_mask_only_causally() -> None:
    model = tiny_llama(num_key_value_heads=1)
    convert(model, AttentionSettings())
    ids = _ids()
    before = _logits(model, {"input_ids": ids})
    ids[:, 5:] = 2
    assert torch.equal(_logits(model, {"input_ids": ids})[:, :5], before[:, :5])
