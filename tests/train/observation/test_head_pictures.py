"""Pictures of heads on one sequence, against transformers' own attention."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from transformers import BertModel

from tests.train.encoders import VARIANTS, padded_batch, randomize_gates, tiny_config, tiny_encoder
from train.attention.settings import AttentionSettings
from train.conversion.convert import convert
from train.families.known_families import layers_of
from train.observation.head_pictures import picture_sequence


def _one_row() -> dict[str, torch.Tensor]:
    return {name: tensor[:1] for name, tensor in padded_batch().items()}


def test_a_picture_holds_the_probabilities_and_value_norms_of_the_chosen_heads_in_order() -> None:
    model = tiny_encoder()
    assert isinstance(model, BertModel)
    convert(model, AttentionSettings())
    picture = picture_sequence(model, _one_row(), [(1, 2), (0, 1)])
    own = BertModel(tiny_config())
    own.load_state_dict(model.state_dict())
    own.set_attn_implementation("eager")
    own.train(mode=False)
    with torch.no_grad():
        outputs = own(**_one_row(), output_attentions=True, output_hidden_states=True)
    assert [(head.layer, head.head) for head in picture.heads] == [(1, 2), (0, 1)]
    for found in picture.heads:
        value = layers_of(own)[found.layer].value.linear(outputs.hidden_states[found.layer])[0]
        norm = value[:, found.head * 8 : (found.head + 1) * 8].detach().norm(dim=1)
        np.testing.assert_allclose(
            found.probabilities, outputs.attentions[found.layer][0, found.head].numpy(), atol=1e-6
        )
        np.testing.assert_allclose(found.value_norm, norm.numpy(), rtol=1e-5)
    assert picture.gates is None
    assert np.shape(json.loads(json.dumps(picture.to_dict()))["heads"][0]["probabilities"]) == (9, 9)


def test_gates_of_every_head_come_per_token_without_their_scale() -> None:
    model = tiny_encoder()
    convert(model, VARIANTS["gate-all-heads"])
    start = picture_sequence(model, _one_row(), []).gates
    assert start is not None
    assert start.shape == (2, 3, 9)
    np.testing.assert_allclose(start, 0.5, rtol=1e-6)
    randomize_gates(model)
    moved = picture_sequence(model, _one_row(), []).gates
    assert moved is not None
    assert 0 < moved.min() < moved.max() < 1


@pytest.mark.parametrize("head", [(2, 0), (0, 3), (-1, 0)])
def test_a_head_that_does_not_exist_is_refused_by_name(head: tuple[int, int]) -> None:
    model = tiny_encoder()
    convert(model, AttentionSettings())
    with pytest.raises(
        ValueError, match=rf"no head {head[0]}\.{head[1]}; the model has layers 0 to 1 with heads 0 to 2"
    ):
        picture_sequence(model, _one_row(), [head])
