import numpy as np
import pytest

from deploy.tasks.sts import rank_correlation, sts_task
from tests.deploy.word_encoder import INPUTS, LookupModel, Pair, WordEncoder, random_texts


def _average_ranks(values: np.ndarray) -> np.ndarray:
    """Ranks with ties averaged, from the definition."""
    return np.array([(values < value).sum() + ((values == value).sum() + 1) / 2 for value in values])


def _pairs(num_pairs: int = 40) -> list[Pair]:
    scores = np.random.default_rng(5).integers(0, 6, size=num_pairs)
    texts = random_texts(2 * num_pairs, seed=3)
    return [Pair(texts[2 * i], texts[2 * i + 1], float(scores[i])) for i in range(num_pairs)]


def test_rank_correlation_equals_pearson_of_average_ranks() -> None:
    generator = np.random.default_rng(0)
    first, second = generator.integers(0, 5, size=60).astype(float), generator.standard_normal(60)
    expected = np.corrcoef(_average_ranks(first), _average_ranks(second))[0, 1]
    assert rank_correlation(first, second) == pytest.approx(expected, abs=1e-12)


def test_constant_similarities_rank_nothing() -> None:
    assert rank_correlation(np.ones(5), np.arange(5.0)) == 0.0


def test_sts_equals_a_plain_reference_sentence_by_sentence() -> None:
    model, encoder, pairs = LookupModel(), WordEncoder(), _pairs()
    task = sts_task(pairs, encoder, pooling="mean", input_names=INPUTS, batch_size=7)
    cosines = []
    for pair in pairs:
        first_D, second_D = (
            model.table_VD[row].mean(0).astype(np.float64) for row in encoder.encode([pair.first, pair.second])
        )
        cosines.append(first_D @ second_D / np.linalg.norm(first_D) / np.linalg.norm(second_D))
    gold = np.array([pair.score for pair in pairs])
    expected = np.corrcoef(_average_ranks(np.array(cosines)), _average_ranks(gold))[0, 1]
    result = task.evaluate(model.infer)
    assert result.score == pytest.approx(expected, abs=1e-9)
    assert result.details["pearson"] == pytest.approx(np.corrcoef(cosines, gold)[0, 1], abs=1e-6)
    assert task.num_examples == 40


def test_every_candidate_sees_identical_batches() -> None:
    task = sts_task(_pairs(), WordEncoder(), pooling="cls", input_names=INPUTS)
    first, second = LookupModel(), LookupModel(noise=0.1)
    task.evaluate(first.infer)
    task.evaluate(second.infer)
    assert len(first.batches) == len(second.batches)
    assert all(a is b for a, b in zip(first.batches, second.batches, strict=True))


def test_pairs_without_anything_to_rank_are_refused() -> None:
    for pairs in (_pairs(2), [Pair("w4", "w5", 1.0)] * 5):
        with pytest.raises(ValueError, match="at least three pairs with different scores"):
            sts_task(pairs, WordEncoder(), pooling="mean", input_names=INPUTS)
