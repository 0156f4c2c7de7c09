"""Outlier metrics against scipy and against loops in numpy float64."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.train.encoders import MINILM, padded_batch, tiny_encoder
from train.checkpoints.checkpoint import load
from train.families.known_families import layers_of
from train.observation.named_tensors import named_tensors
from train.observation.outliers import measure_outliers, spread


def test_figures_equal_a_loop_over_sequences_and_tokens() -> None:
    model, batches = tiny_encoder(), [padded_batch(0), padded_batch(1)]
    report = measure_outliers(model, batches)
    assert (report.num_sequences, report.num_tokens) == (6, 30)
    sequences: dict[str, list[np.ndarray]] = {}
    for batch in batches:
        with torch.no_grad(), named_tensors(model) as tensors:
            model(**batch)
        for name, tensor in tensors.items():
            lengths = batch["attention_mask"].sum(1).tolist()
            sequences.setdefault(name, []).extend(
                row[:length].double().numpy() for row, length in zip(tensor, lengths, strict=True)
            )
    for found in report.tensors:
        rows = sequences[found.name]
        tokens = np.concatenate(rows)
        outliers = [np.abs(row - row.mean()) > 6 * row.std() for row in rows]
        assert found.inf_norm == pytest.approx(np.mean([np.abs(row).max() for row in rows]))
        assert found.kurtosis == pytest.approx(
            np.mean([scipy.stats.kurtosis(row, axis=None, fisher=False) for row in rows])
        )
        assert found.token_inf_norm == pytest.approx(np.abs(tokens).max(1).mean())
        assert found.token_kurtosis == pytest.approx(scipy.stats.kurtosis(tokens, axis=1, fisher=False).mean())
        assert found.largest == pytest.approx(np.abs(tokens).max())
        np.testing.assert_allclose(found.largest_by_feature, np.abs(tokens).max(0))
        np.testing.assert_array_equal(found.outliers_by_feature, np.concatenate(outliers).sum(0))
        assert found.num_values == tokens.size


def test_outliers_are_attributed_to_their_feature_and_token() -> None:
    model, batch = tiny_encoder(), padded_batch()
    batch["input_ids"][0, 4] = 7
    batch["input_ids"][batch["input_ids"] == 7] = 8
    batch["input_ids"][0, 4] = 7
    with torch.no_grad():
        model.get_parameter("embeddings.word_embeddings.weight")[7, 11] = 1000.0
    report = measure_outliers(model, [batch], kinds=["embedding_sum"])
    (found,) = report.tensors
    assert found.num_outliers == 1
    assert found.outliers_by_token == {7: 1}
    assert found.outliers_by_position.tolist() == [0, 0, 0, 0, 1, 0, 0, 0, 0]
    assert found.largest_by_position.argmax() == 4
    assert found.outliers_by_feature.nonzero()[0].tolist() == [11]
    assert found.largest_by_feature.argmax() == 11


def test_positions_count_from_the_first_token_behind_padding_on_the_left() -> None:
    model, right = tiny_encoder(), padded_batch()
    with torch.no_grad():  # without position embeddings a moved row gives the same embedding sum
        model.get_parameter("embeddings.position_embeddings.weight").zero_()
    lengths = right["attention_mask"].sum(1).tolist()
    left = {
        name: torch.stack([row.roll(9 - length) for row, length in zip(tensor, lengths, strict=True)])
        for name, tensor in right.items()
    }
    (one,) = measure_outliers(model, [right], kinds=["embedding_sum"]).tensors
    (other,) = measure_outliers(model, [left], kinds=["embedding_sum"]).tensors
    np.testing.assert_allclose(other.largest_by_position, one.largest_by_position)


def test_what_padding_holds_never_counts() -> None:
    model, batch = tiny_encoder(), padded_batch()
    other = {**batch, "input_ids": torch.where(batch["attention_mask"].bool(), batch["input_ids"], 49)}
    assert measure_outliers(model, [batch]).to_dict() == measure_outliers(model, [other]).to_dict()


def test_a_row_of_padding_alone_is_left_out() -> None:
    model, batch = tiny_encoder(), padded_batch()
    short = {name: tensor[:2] for name, tensor in batch.items()}
    batch["attention_mask"][2] = 0
    found, expected = measure_outliers(model, [batch]), measure_outliers(model, [short])
    assert found.num_sequences == expected.num_sequences == 2
    for one, other in zip(found.tensors, expected.tensors, strict=True):
        assert one.kurtosis == pytest.approx(other.kurtosis, rel=1e-4)


def test_the_size_of_batches_does_not_matter() -> None:
    model, batch = tiny_encoder(), padded_batch()
    single = [{name: tensor[row : row + 1] for name, tensor in batch.items()} for row in range(3)]
    whole, parts = measure_outliers(model, [batch]), measure_outliers(model, single)
    for one, other in zip(whole.tensors, parts.tensors, strict=True):
        assert one.inf_norm == pytest.approx(other.inf_norm, rel=1e-5)
        assert one.token_kurtosis == pytest.approx(other.token_kurtosis, rel=1e-4)


@given(offset=st.floats(-1e3, 1e3), scale=st.floats(1e-6, 1e6))
@settings(max_examples=50, deadline=None)
def test_kurtosis_ignores_offset_and_scale(offset: float, scale: float) -> None:
    values = np.random.default_rng(0).standard_normal((2, 500)) * scale
    moved = spread(torch.from_numpy(values + offset * scale))[2]
    np.testing.assert_allclose(moved, scipy.stats.kurtosis(values, axis=1, fisher=False), rtol=1e-7)


def test_a_gaussian_has_kurtosis_three() -> None:
    values = torch.randn(4, 200_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    np.testing.assert_allclose(spread(values)[2], 3.0, atol=0.1)  # its standard error is sqrt(24 / n) = 0.011


def test_a_constant_row_has_no_kurtosis() -> None:
    values = torch.full((1, 77), 0.1, dtype=torch.float32).double()
    assert spread(values)[2].isnan().all()


def test_constant_tensors_are_left_out_of_averages_and_are_null_in_json() -> None:
    model = tiny_encoder()
    for layer in layers_of(model):
        torch.nn.init.zeros_(layer.ffn_out.weight)
        torch.nn.init.zeros_(layer.ffn_out.bias)
    report = measure_outliers(model, [padded_batch()])
    values = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert values["summary"]["ffn_output"] == {
        "max_inf_norm": 0.0,
        "max_inf_norm_tensor": "layer.0.ffn_output",
        "average_kurtosis": None,
        "largest": 0.0,
    }
    assert values["summary"]["all"]["average_kurtosis"] > 0


def test_summaries_say_which_tensor_is_worst() -> None:
    report = measure_outliers(tiny_encoder(), [padded_batch()])
    worst = max(report.tensors, key=lambda tensor: tensor.inf_norm)
    assert report.summary().max_inf_norm_tensor == worst.name
    assert report.largest_ffn_output == max(t.largest for t in report.tensors if t.kind == "ffn_output")
    with pytest.raises(ValueError, match="no tensor of kind 'embedding_sum' was measured; there are ffn_output"):
        measure_outliers(tiny_encoder(), [padded_batch()], kinds=["ffn_output"]).summary("embedding_sum")


def test_a_non_finite_tensor_is_refused_by_name() -> None:
    model = tiny_encoder()
    with torch.no_grad():
        layers_of(model)[1].ffn_out.bias[3] = torch.inf
    with pytest.raises(ValueError, match=r"tensor 'layer.1.ffn_output' holds NaN or infinity"):
        measure_outliers(model, [padded_batch()])


def test_no_tokens_are_refused_and_the_mode_of_the_model_comes_back() -> None:
    model = tiny_encoder()
    model.train()
    with pytest.raises(ValueError, match="no token to measure"):
        measure_outliers(model, [])
    assert model.training


def test_minilm_has_the_outliers_that_make_it_fail_in_eight_bits() -> None:
    ids = torch.tensor([[101, 1996, 4937, 2938, 2006, 1996, 13523, 1012, 102]])  # [CLS] the cat sat on the mat. [SEP]
    report = measure_outliers(load(MINILM), [{"input_ids": ids, "attention_mask": torch.ones_like(ids)}])
    assert report.largest_ffn_output > 150
    assert report.summary("ffn_output").average_kurtosis > 1000
    first = next(tensor for tensor in report.tensors if tensor.name == "layer.0.ffn_output")
    assert max(first.outliers_by_token, key=lambda token: first.outliers_by_token[token]) == 101
    assert first.largest_by_feature.argmax() == 99
