import numpy as np
import pytest

from deploy.tasks.embedding import normalise, pool
from deploy.tasks.length_batches import length_batches
from deploy.tasks.sentence_vectors import embed
from tests.deploy.word_encoder import INPUTS, LookupModel, WordEncoder, random_texts


def test_mean_pooling_averages_attended_tokens_only() -> None:
    features_BTD = np.arange(24, dtype=np.float32).reshape(2, 4, 3)
    mask_BT = np.array([[1, 1, 0, 0], [1, 1, 1, 1]])
    expected = np.stack([features_BTD[0, :2].mean(0), features_BTD[1].mean(0)])
    np.testing.assert_allclose(pool(features_BTD, mask_BT, "mean"), expected)


def test_cls_pooling_takes_the_first_token() -> None:
    features_BTD = np.arange(24, dtype=np.float32).reshape(2, 4, 3)
    np.testing.assert_array_equal(pool(features_BTD, np.ones((2, 4)), "cls"), features_BTD[:, 0])


def test_a_fully_padded_row_gives_finite_zeros() -> None:
    pooled = pool(np.ones((1, 4, 3), dtype=np.float32), np.zeros((1, 4), dtype=np.int64), "mean")
    np.testing.assert_array_equal(normalise(pooled), np.zeros((1, 3)))


def test_batched_embeddings_equal_one_sentence_at_a_time() -> None:
    model, encoder, texts = LookupModel(), WordEncoder(), random_texts(23)
    rows = encoder.encode(texts)
    batches = length_batches(encoder, rows, input_names=INPUTS, batch_size=4)
    vectors_ND = embed(model.infer, batches, pooling="mean")
    for row, vector_D in zip(rows, vectors_ND, strict=True):
        expected_D = model.table_VD[row].mean(0)
        np.testing.assert_allclose(vector_D, expected_D / np.linalg.norm(expected_D), atol=1e-6)


def test_batches_are_padded_little_and_keep_every_row_once() -> None:
    encoder, rows = WordEncoder(), WordEncoder().encode(random_texts(50))
    batches = length_batches(encoder, rows, input_names=INPUTS, batch_size=8)
    assert sorted(np.concatenate([batch.rows for batch in batches]).tolist()) == list(range(50))
    padded = sum(batch.feeds["input_ids"].size for batch in batches)
    assert padded <= 1.25 * sum(map(len, rows))
    static = length_batches(encoder, rows, input_names=INPUTS, batch_size=8, length=16)
    assert {batch.feeds["input_ids"].shape[1] for batch in static} == {16}


def test_missing_outputs_inputs_and_texts_are_named() -> None:
    encoder = WordEncoder()
    batches = length_batches(encoder, encoder.encode(["w4"]), input_names=INPUTS)
    with pytest.raises(ValueError, match="no output 'last_hidden_state'; it has logits"):
        embed(lambda feeds: {"logits": feeds["input_ids"]}, batches, pooling="mean")
    with pytest.raises(ValueError, match="takes no attention_mask; it takes input_ids"):
        length_batches(encoder, encoder.encode(["w4"]), input_names=["input_ids"])
    with pytest.raises(ValueError, match="no texts"):
        length_batches(encoder, [], input_names=INPUTS)


def test_embeddings_that_are_not_finite_are_refused() -> None:
    model, encoder = LookupModel(), WordEncoder()
    model.table_VD[7] = np.nan
    batches = length_batches(encoder, encoder.encode(["w4 w5", "w7", "w6 w7"]), input_names=INPUTS)
    with pytest.raises(ValueError, match="2 of 3 embeddings are not finite"):
        embed(model.infer, batches, pooling="mean")
