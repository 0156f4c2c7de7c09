"""Figures of heads against loops in numpy float64 over transformers' own attention, and on planted heads."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from transformers import BertModel

from tests.train.decoders import DECODERS
from tests.train.encoders import VARIANTS, padded_batch, randomize_gates, tiny_config, tiny_encoder
from train.attention.settings import AttentionSettings
from train.conversion.convert import convert
from train.families.known_families import layers_of
from train.observation.attention_statistics import LOW_GATE, AttentionStatistics, measure_attention
from train.observation.attention_watch import AttentionView, view_attention

DELIMITERS = (7, 9)
HEAD_SIZE = 8


def _vanilla(seed: int = 0) -> BertModel:
    model = tiny_encoder(seed)
    assert isinstance(model, BertModel)
    convert(model, AttentionSettings())
    return model


def _with_delimiters(seed: int = 0) -> dict[str, torch.Tensor]:
    batch = padded_batch(seed)
    batch["input_ids"][0, 2] = batch["input_ids"][1, 4] = 7
    batch["input_ids"][0, 8] = 9
    return batch


def plant_resting_head(model: BertModel, *, token: int, head: int) -> None:
    """Make a head of the first layer put all its probability on one token whose value is tiny."""
    rows = slice(head * HEAD_SIZE, (head + 1) * HEAD_SIZE)
    modules = layers_of(model)[0]
    with torch.no_grad():
        # After the LayerNorm this token has one large feature, 11, and next to nothing in the others.
        model.embeddings.word_embeddings.weight[:, 11] = 0.0
        model.embeddings.word_embeddings.weight[token, 11] = 1e4
        model.embeddings.position_embeddings.weight[:, 11] = 0.0
        model.embeddings.token_type_embeddings.weight[:, 11] = 0.0
        for linear in (modules.query.linear, modules.key.linear, modules.value.linear):
            linear.weight[rows, 11] = 0.0
            linear.bias[rows] = 0.0
        for linear in (modules.query.linear, modules.key.linear):
            linear.weight[rows] = 0.0
        modules.query.linear.bias[rows.start] = 10.0
        modules.key.linear.weight[rows.start, 11] = 5.0


def test_figures_equal_a_loop_over_sequences_queries_and_keys() -> None:
    model, batches = _vanilla(), [_with_delimiters(0), _with_delimiters(1)]
    found = measure_attention(model, batches, delimiters=DELIMITERS)
    own = BertModel(tiny_config())
    own.load_state_dict(model.state_dict())
    own.set_attn_implementation("eager")
    own.train(mode=False)
    for layer in (0, 1):
        for head in (0, 1, 2):
            shares, ratios, on_delimiters, norms, delimiter_norms = [], [], [], [], []
            for batch in batches:
                with torch.no_grad():
                    outputs = own(**batch, output_attentions=True, output_hidden_states=True)
                    value = layers_of(own)[layer].value.linear(outputs.hidden_states[layer])
                for row, length in enumerate(batch["attention_mask"].sum(1).tolist()):
                    p = outputs.attentions[layer][row, head, :length, :length].double().numpy()
                    v = value[row, :length, head * HEAD_SIZE : (head + 1) * HEAD_SIZE].double().numpy()
                    norm = np.sqrt((v**2).sum(1))
                    is_delimiter = np.isin(batch["input_ids"][row, :length].numpy(), DELIMITERS)
                    sink = p.mean(0).argmax()
                    shares.append(p.mean(0)[sink])
                    ratios.append(norm[sink] / norm.mean())
                    on_delimiters += p[:, is_delimiter].sum(1).tolist()
                    norms += norm.tolist()
                    delimiter_norms += norm[is_delimiter].tolist()
            assert found.sink_share[layer, head] == pytest.approx(np.mean(shares), rel=1e-5)
            assert found.sink_value_norm[layer, head] == pytest.approx(np.mean(ratios), rel=1e-5)
            assert found.delimiter_share is not None
            assert found.delimiter_value_norm is not None
            assert found.delimiter_share[layer, head] == pytest.approx(np.mean(on_delimiters), rel=1e-5)
            assert found.delimiter_value_norm[layer, head] == pytest.approx(
                np.mean(delimiter_norms) / np.mean(norms), rel=1e-5
            )
    assert found.num_sequences == 6
    assert found.gate_mean is None


def test_a_planted_resting_head_is_found_first() -> None:
    model = _vanilla()
    plant_resting_head(model, token=7, head=1)
    batch = padded_batch()
    batch["input_ids"][:, 0] = 7
    found = measure_attention(model, [batch], delimiters=[7])
    assert found.delimiter_share is not None
    assert found.delimiter_value_norm is not None
    assert found.delimiter_share[0, 1] == pytest.approx(1.0, abs=1e-6)
    assert found.sink_share[0, 1] == pytest.approx(1.0, abs=1e-6)
    assert found.delimiter_value_norm[0, 1] < 0.5
    assert found.idlest_heads(1) == [(0, 1)]


def test_zero_share_counts_visible_pairs_alone() -> None:
    model = tiny_encoder()
    convert(model, AttentionSettings(softmax="clipped", gamma=-0.4))
    found = measure_attention(model, [padded_batch()])
    seen: list[torch.Tensor] = []
    view_attention(model, padded_batch(), lambda view: seen.append(view.probabilities))
    lengths = padded_batch()["attention_mask"].sum(1).tolist()
    for layer in (0, 1):
        for head in (0, 1, 2):
            pairs = np.concatenate(
                [seen[layer][row, head, :length, :length].flatten().numpy() for row, length in enumerate(lengths)]
            )
            assert found.zero_share[layer, head] == pytest.approx((pairs == 0).mean())
    assert 0 < found.zero_share.min() <= found.zero_share.max() < 1


def test_a_softmax_without_clip_has_no_exact_zero() -> None:
    model = tiny_encoder()
    torch.nn.init.zeros_(layers_of(model)[0].query.linear.weight)
    convert(model, AttentionSettings())
    assert measure_attention(model, [padded_batch()]).zero_share[0].tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("name", DECODERS)
def test_keys_that_a_causal_mask_hides_count_nowhere(name: str) -> None:
    model, batch = DECODERS[name](), padded_batch()
    convert(model, AttentionSettings())
    found = measure_attention(model, [batch])
    assert found.zero_share.tolist() == np.zeros_like(found.zero_share).tolist()
    views: list[AttentionView] = []
    view_attention(model, batch, views.append)
    assert views[0].visible[0, 0].tolist() == torch.ones(9, 9).tril().bool().tolist()
    shares = views[1].probabilities[0].double().mean(dim=1)  # the row without padding
    alone = measure_attention(model, [{key: tensor[:1] for key, tensor in batch.items()}])
    assert not alone.zero_share.any()  # without padding the model asks for no mask, and makes its own
    np.testing.assert_allclose(alone.sink_share[1], shares.amax(dim=1).numpy(), rtol=1e-5)


@pytest.mark.parametrize("variant", ["gate-linear", "gate-mlp", "gate-all-heads"])
def test_gates_are_reported_without_their_scale_over_real_tokens(variant: str) -> None:
    model, batch = tiny_encoder(), padded_batch()
    convert(model, VARIANTS[variant])
    started = measure_attention(model, [batch])
    assert started.gate_mean is not None
    np.testing.assert_allclose(started.gate_mean, VARIANTS[variant].gate_init, rtol=1e-5)
    randomize_gates(model)
    gates: list[torch.Tensor] = []
    modules = layers_of(model)
    hidden: list[torch.Tensor] = []
    handles = [
        layer.attention.register_forward_pre_hook(
            lambda _module, args, kwargs: hidden.append(args[0] if args else kwargs["hidden_states"]), with_kwargs=True
        )
        for layer in modules
    ]
    found = measure_attention(model, [batch])
    for handle in handles:
        handle.remove()
    for layer, states in zip(modules, hidden, strict=True):
        gate = layer.attention.gate
        with torch.no_grad():
            gates.append(torch.sigmoid(gate.logits(states, None))[batch["attention_mask"].bool()])  # type: ignore[operator, union-attr]
    assert found.gate_mean is not None
    assert found.gate_low_share is not None
    np.testing.assert_allclose(found.gate_mean, [gate.mean(0).numpy() for gate in gates], rtol=1e-5)
    low = [(gate < LOW_GATE).double().mean(0).numpy() for gate in gates]
    np.testing.assert_allclose(found.gate_low_share, low)


@pytest.mark.parametrize("variant", ["vanilla", "clipped-and-gated"])
def test_the_size_of_batches_and_what_padding_holds_do_not_matter(variant: str) -> None:
    model, batch = tiny_encoder(), _with_delimiters()
    convert(model, VARIANTS[variant])
    single = [{name: tensor[row : row + 1] for name, tensor in batch.items()} for row in range(3)]
    other = {**batch, "input_ids": torch.where(batch["attention_mask"].bool(), batch["input_ids"], 7)}
    whole = measure_attention(model, [batch], delimiters=DELIMITERS)
    for changed in (single, [other]):
        _assert_equal(measure_attention(model, changed, delimiters=DELIMITERS), whole)


def _assert_equal(one: AttentionStatistics, other: AttentionStatistics) -> None:
    for name, values in one.to_dict().items():
        expected = other.to_dict()[name]
        if values is None:
            assert expected is None
        else:
            np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-7, err_msg=name)


def test_json_holds_a_number_per_head_and_null_for_what_a_model_lacks() -> None:
    values = json.loads(json.dumps(measure_attention(_vanilla(), [padded_batch()]).to_dict(), allow_nan=False))
    assert np.shape(values["sink_share"]) == (2, 3)
    assert values["gate_mean"] is values["delimiter_share"] is None


def test_no_tokens_are_refused_and_the_mode_of_the_model_comes_back() -> None:
    model = _vanilla()
    model.train()
    with pytest.raises(ValueError, match="no token to measure"):
        measure_attention(model, [])
    assert model.training
