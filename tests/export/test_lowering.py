"""Lowering keeps what a model computes; measured on PyTorch, before any trace."""

from __future__ import annotations

import copy
from typing import get_args

import pytest
import torch
from transformers import PreTrainedModel

from export.lowering import Lowering, lower, undo_chunking
from export.traced_masks import BoundedMask
from tests.export.tiny_checkpoints import GATES, SOFTMAXES, settings, tiny_model
from train.families.known_families import layers_of

ROUNDING = 1e-5  # float32, outputs of a LayerNorm


def _batch() -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    mask_BT = (torch.arange(17)[None] < torch.tensor([17, 9, 1])[:, None]).long()
    return {"input_ids": torch.randint(4, 100, (3, 17)), "attention_mask": mask_BT}


def _hidden(model: PreTrainedModel, batch: dict[str, torch.Tensor], *, lowered: bool) -> torch.Tensor:
    mask = batch["attention_mask"]
    with torch.no_grad():
        output = model(input_ids=batch["input_ids"], attention_mask=BoundedMask()(mask) if lowered else mask)
    hidden_BTD = output.last_hidden_state
    assert isinstance(hidden_BTD, torch.Tensor)
    return hidden_BTD


@pytest.mark.parametrize("lowering", get_args(Lowering))
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("softmax", SOFTMAXES)
def test_a_lowered_model_computes_what_the_original_does(softmax: str, gate: str, lowering: Lowering) -> None:
    model = tiny_model(settings(softmax, gate))
    batch = _batch()
    expected = _hidden(model, batch, lowered=False)
    actual = _hidden(lower(model, lowering=lowering).model, batch, lowered=True)
    difference = (actual - expected)[batch["attention_mask"] == 1].abs().max()
    assert difference < ROUNDING
    assert torch.isfinite(actual).all()


def test_both_lowerings_agree() -> None:
    model = tiny_model(settings("clipped", "mlp"))
    batch = _batch()
    folded, literal = (
        _hidden(lower(model, lowering=lowering).model, batch, lowered=True) for lowering in get_args(Lowering)
    )
    assert (folded - literal).abs().max() < ROUNDING


def test_the_model_itself_is_not_touched() -> None:
    model = tiny_model(settings("clipped", "linear"))
    before = copy.deepcopy(model.state_dict())
    lower(model, lowering="folded")
    assert model.config._attn_implementation == "quietformer"
    assert before.keys() == model.state_dict().keys()
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_scales_live_in_the_weights_they_commute_with() -> None:
    model = tiny_model(settings("clipped", "mlp"))
    original, folded = layers_of(model)[0], layers_of(lower(model, lowering="folded").model)[0]
    gamma, head_size = -4.0 / 32, 8
    torch.testing.assert_close(folded.query.weight, original.query.weight / head_size**0.5)
    assert original.query.bias is not None
    assert original.value.bias is not None
    torch.testing.assert_close(folded.query.bias, original.query.bias / head_size**0.5)
    torch.testing.assert_close(folded.value.weight, original.value.weight * (1 - gamma))
    torch.testing.assert_close(folded.value.bias, original.value.bias * (1 - gamma))
    torch.testing.assert_close(folded.output_projection.weight, original.output_projection.weight * 4.0)
    torch.testing.assert_close(folded.output_projection.bias, original.output_projection.bias)


def test_literal_folds_only_the_scale_of_the_scores() -> None:
    model = tiny_model(settings("clipped", "mlp"))
    original, literal = layers_of(model)[0], layers_of(lower(model, lowering="literal").model)[0]
    torch.testing.assert_close(literal.query.weight, original.query.weight / 8**0.5)
    assert torch.equal(literal.value.weight, original.value.weight)
    assert torch.equal(literal.output_projection.weight, original.output_projection.weight)


def test_attention_paths_follow_the_layers() -> None:
    paths = lower(tiny_model(num_layers=2, architecture="BertForMaskedLM"), lowering="folded").attention_paths
    assert paths == ("bert.encoder.layer.0.attention.self", "bert.encoder.layer.1.attention.self")


def test_a_feed_forward_in_chunks_then_takes_every_length() -> None:
    chunked, whole = (tiny_model(num_layers=1, chunk_size_feed_forward=size) for size in (4, 0))
    batch = _batch()
    with pytest.raises(ValueError, match="multiple of the chunk size"):
        _hidden(chunked, batch, lowered=False)
    undo_chunking(chunked)
    assert torch.equal(_hidden(chunked, batch, lowered=False), _hidden(whole, batch, lowered=False))


def test_an_unknown_lowering_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown lowering 'fused'; known are folded, literal"):
        lower(tiny_model(), lowering="fused")  # type: ignore[arg-type]
