"""A stored prefix is the tokens it was made of, for every softmax, padding and cache; it is saved, refused and tried."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from tests.train.decoders import VOCABULARY, tiny_llama, tiny_opt
from train.attention.settings import AttentionSettings
from train.attention.stored_prefix import prefix_of
from train.checkpoints.checkpoint import load, save
from train.conversion.convert import convert, settings_of
from train.conversion.prefix_tokens import store_prefix, try_prefixes
from train.families.known_families import layers_of
from train.observation.attention_watch import AttentionView, view_attention
from train.simulation.fake_quant import simulated

PREFIX = [5, 7, 5]
SOFTMAX_KINDS = {
    "vanilla": AttentionSettings(),
    "off_by_one": AttentionSettings(softmax="off_by_one"),
    "clipped": AttentionSettings(softmax="clipped", gamma=-0.02),
    "clipped_per_row": AttentionSettings(softmax="clipped_per_row", alpha=0.2),
    "gated": AttentionSettings(gate="linear", gate_init=0.25),
}


def _ids(rows: int = 2, length: int = 9) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(1))


def _with_prefix(settings: AttentionSettings | None = None) -> PreTrainedModel:
    model = tiny_llama()
    convert(model, settings or AttentionSettings())
    store_prefix(model, PREFIX)
    return model


@torch.no_grad()
def _logits(model: PreTrainedModel, **inputs: torch.Tensor) -> torch.Tensor:
    logits_BTV: torch.Tensor = model(**inputs).logits
    return logits_BTV


@pytest.mark.parametrize("kind", SOFTMAX_KINDS)
def test_a_stored_prefix_computes_what_its_tokens_before_the_text_did(kind: str) -> None:
    ids_BT = _ids()
    reference = tiny_llama()
    convert(reference, SOFTMAX_KINDS[kind])
    behind = torch.cat([torch.tensor([PREFIX] * len(ids_BT)), ids_BT], dim=1)
    expected = _logits(reference, input_ids=behind)[:, len(PREFIX) :]
    model = _with_prefix(SOFTMAX_KINDS[kind])
    torch.testing.assert_close(_logits(model, input_ids=ids_BT), expected, atol=1e-4, rtol=1e-4)
    assert (expected - _logits(reference, input_ids=ids_BT)).abs().max() > 0.1  # the prefix matters


@pytest.mark.parametrize("kind", SOFTMAX_KINDS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side_changes_nothing_for_real_tokens(kind: str, side: str) -> None:
    model, ids_BT = _with_prefix(SOFTMAX_KINDS[kind]), _ids()
    mask_BT = torch.ones_like(ids_BT)
    real = slice(4, None) if side == "left" else slice(None, -4)
    mask_BT[0] = 0
    mask_BT[0, real] = 1
    padded = _logits(model, input_ids=ids_BT, attention_mask=mask_BT)
    alone = _logits(model, input_ids=ids_BT[:1, real])
    torch.testing.assert_close(padded[:1, real], alone, atol=1e-4, rtol=1e-4)
    assert torch.isfinite(padded).all()


def test_tokens_generated_one_by_one_from_a_cache_see_the_prefix_once() -> None:
    model, ids_BT = _with_prefix(), _ids(length=6)
    whole = _logits(model, input_ids=ids_BT)
    mask_BT = torch.ones_like(ids_BT)
    with torch.no_grad():
        start = model(input_ids=ids_BT[:, :4], attention_mask=mask_BT[:, :4], use_cache=True)
        following = model(
            input_ids=ids_BT[:, 4:5], attention_mask=mask_BT[:, :5], cache=start.past_key_values, use_cache=True
        )
    torch.testing.assert_close(following.logits[:, 0], whole[:, 4], atol=1e-4, rtol=1e-4)


def test_a_prefix_is_saved_and_loaded_bit_for_bit(tmp_path: Path) -> None:
    model = _with_prefix()
    save(model, tmp_path / "checkpoint", source=None)
    loaded = load(tmp_path / "checkpoint")
    settings = settings_of(loaded)
    assert settings is not None
    assert settings.prefix == len(PREFIX)
    assert not settings.is_vanilla
    ids_BT = _ids()
    assert torch.equal(_logits(loaded, input_ids=ids_BT), _logits(model, input_ids=ids_BT))


def test_a_prefix_that_starts_at_zero_takes_attention_and_can_be_learned() -> None:
    model = tiny_llama()
    convert(model, AttentionSettings(prefix=2))
    model(input_ids=_ids(), labels=_ids()).loss.backward()
    for layer in layers_of(model):
        prefix = prefix_of(layer.attention)
        assert prefix is not None
        assert prefix.value.grad is not None
        assert prefix.value.grad.abs().max() > 0


def test_simulated_integers_round_padded_rows_behind_a_prefix() -> None:
    model, ids_BT = _with_prefix(), _ids()
    mask_BT = torch.ones_like(ids_BT)
    mask_BT[0, -3:] = 0
    batch = {"input_ids": ids_BT, "attention_mask": mask_BT}
    exact = _logits(model, **batch)
    with simulated(model, [batch], profile="paper"):
        rounded = _logits(model, **batch)
    error = (rounded - exact)[mask_BT.bool()].norm() / exact[mask_BT.bool()].norm()
    assert 0 < error < 0.2


def test_diagnosis_shows_the_sequence_without_the_prefix() -> None:
    views: list[AttentionView] = []
    view_attention(_with_prefix(), {"input_ids": _ids()}, views.append)
    assert [view.probabilities.shape for view in views] == [(2, 4, 9, 9)] * 2
    assert views[0].probabilities.sum(dim=-1).min() < 0.9  # the rest goes to the prefix


def test_trying_prefixes_ranks_them_and_leaves_the_model_as_it_was() -> None:
    model = tiny_llama()
    convert(model, AttentionSettings())
    batch = {"input_ids": _ids()}
    before = _logits(model, **batch)
    trials = try_prefixes(model, [[], [5], [5, 7]], [batch])
    assert [trial.largest for trial in trials] == sorted(trial.largest for trial in trials)
    assert {trial.token_ids for trial in trials} == {(), (5,), (5, 7)}
    assert torch.equal(_logits(model, **batch), before)
    store_prefix(model, trials[0].token_ids or (5,))


def test_trying_candidates_on_a_model_with_a_prefix_is_refused_and_leaves_it_its_own() -> None:
    model = _with_prefix()
    before = _logits(model, input_ids=_ids())
    with pytest.raises(ValueError, match="already has a prefix"):
        try_prefixes(model, [[5]], [{"input_ids": _ids()}])
    assert torch.equal(_logits(model, input_ids=_ids()), before)


def test_a_prefix_is_refused_where_positions_are_not_rotary_and_twice() -> None:
    model = tiny_opt()
    convert(model, AttentionSettings())
    with pytest.raises(ValueError, match="rotary"):
        store_prefix(model, PREFIX)
    with pytest.raises(ValueError, match="rotary"):
        convert(tiny_opt(), AttentionSettings(prefix=1))
    with pytest.raises(ValueError, match="already has a prefix"):
        store_prefix(_with_prefix(), PREFIX)
    with pytest.raises(ValueError, match="not converted"):
        store_prefix(tiny_llama(), PREFIX)


@pytest.mark.parametrize("tokens", [[], [VOCABULARY], [-1], [1] * 65])
def test_tokens_that_cannot_be_a_prefix_are_refused(tokens: list[int]) -> None:
    model = tiny_llama()
    convert(model, AttentionSettings())
    with pytest.raises(ValueError, match="prefix tokens"):
        store_prefix(model, tokens)
