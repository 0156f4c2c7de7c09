"""Lowering keeps what a decoder computes, with padding on either side; measured on PyTorch, before any trace."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from transformers import PreTrainedModel

from export.lowered_attention import RowGamma, per_query_head
from export.lowering import Lowering, lower
from export.traced_masks import CausalMask, Positions
from export.tracing import GraphInterface, TracedModel
from tests.export.tiny_checkpoints import GATES, SOFTMAXES, settings
from tests.export.tiny_decoders import FAMILIES, tiny_decoder
from train.attention.quiet_attention import MASK_VALUE
from train.families.known_families import layers_of

ROUNDING = 5e-5  # float32, logits of about 10, positions from another start

INTERFACE = GraphInterface(output="logits", token_types=False, ids=torch.int64, max_length=48, length=None, causal=True)


def _batch() -> tuple[torch.Tensor, torch.Tensor]:
    """A full row, and rows padded behind, before and on both sides of their tokens; one has a single token."""
    places_T = torch.arange(17)
    begins_ends = [(0, 17), (0, 9), (11, 17), (5, 6)]
    mask_BT = torch.stack([(places_T >= begin) & (places_T < end) for begin, end in begins_ends]).long()
    torch.manual_seed(1)
    return torch.randint(4, 100, mask_BT.shape), mask_BT


def _lowered_logits(model: PreTrainedModel, lowering: Lowering) -> torch.Tensor:
    ids_BT, mask_BT = _batch()
    with torch.no_grad():
        logits_BTV = TracedModel(lower(model, lowering=lowering).model, INTERFACE)(ids_BT, mask_BT)
    assert isinstance(logits_BTV, torch.Tensor)
    return logits_BTV


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("softmax", SOFTMAXES)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_lowered_decoder_computes_what_the_original_does(family: str, softmax: str, gate: str) -> None:
    model = tiny_decoder(family, settings(softmax, gate))
    ids_BT, mask_BT = _batch()
    with torch.no_grad():
        expected_BTV = model(input_ids=ids_BT, attention_mask=mask_BT).logits
    folded_BTV, literal_BTV = (_lowered_logits(model, lowering) for lowering in get_args(Lowering))
    for actual_BTV in (folded_BTV, literal_BTV):
        assert (actual_BTV - expected_BTV)[mask_BT == 1].abs().max() < ROUNDING
        assert torch.isfinite(actual_BTV).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_decoder_that_was_never_converted_is_lowered_as_vanilla(family: str) -> None:
    model = tiny_decoder(family)
    ids_BT, mask_BT = _batch()
    with torch.no_grad():
        expected_BTV = model(input_ids=ids_BT, attention_mask=mask_BT).logits
    assert (_lowered_logits(model, "folded") - expected_BTV)[mask_BT == 1].abs().max() < ROUNDING


def test_the_scale_of_scores_lives_in_the_queries_and_is_not_applied_twice() -> None:
    for family in ("opt", "llama"):
        model = tiny_decoder(family, settings("clipped", "linear"))
        original, folded = layers_of(model)[0], layers_of(lower(model, lowering="folded").model)[0]
        torch.testing.assert_close(folded.query.weight, original.query.weight / 8**0.5)
        torch.testing.assert_close(folded.value.weight, original.value.weight * (1 + 4.0 / 32))
        torch.testing.assert_close(folded.output_projection.weight, original.output_projection.weight * 2.0)
        assert folded.attention.scaling == 1.0
        assert original.attention.scaling == 8**-0.5


def test_the_causal_mask_is_one_bounded_number_per_pair() -> None:
    _, mask_BT = _batch()
    mask_B1TS = CausalMask()(mask_BT)
    assert mask_B1TS.shape == (4, 1, 17, 17)
    assert set(mask_B1TS.unique().tolist()) == {0.0, MASK_VALUE}
    for row in range(4):
        for query in range(17):
            for key in range(17):
                is_open = key <= query and mask_BT[row, key] == 1
                assert (mask_B1TS[row, 0, query, key] == 0) == bool(is_open)


def test_positions_count_tokens_and_not_padding() -> None:
    mask_BT = torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1], [0, 1, 1, 0], [0, 0, 0, 0]])
    assert Positions()(mask_BT).tolist() == [[0, 1, 2, 3], [-1, -1, 0, 1], [-1, 0, 1, -1], [-1, -1, -1, -1]]
    assert Positions()(mask_BT.int()).dtype == torch.int32


def test_gamma_per_row_counts_the_keys_that_a_causal_query_sees() -> None:
    gamma_B1T1 = RowGamma(alpha=2.0)(CausalMask()(torch.tensor([[1, 1, 1], [0, 1, 1], [0, 0, 0]])), num_keys=3)
    expected_BT = [[-2.0, -1.0, -2 / 3], [-2.0, -2.0, -1.0], [-2.0, -2.0, -2.0]]
    torch.testing.assert_close(gamma_B1T1[:, 0, :, 0], torch.tensor(expected_BT))


def test_each_key_head_serves_neighbouring_query_heads() -> None:
    x_BGSd = torch.arange(12.0).reshape(1, 2, 3, 2)
    x_BHSd = per_query_head(x_BGSd, num_heads=6)
    torch.testing.assert_close(x_BHSd, x_BGSd.repeat_interleave(3, dim=1))
    assert per_query_head(x_BGSd, num_heads=2) is x_BGSd
