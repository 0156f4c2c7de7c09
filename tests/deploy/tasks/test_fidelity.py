import numpy as np
import pytest
from scipy.stats import rankdata

from deploy.tasks import fidelity as fidelity_module
from deploy.tasks.embedding import normalise
from deploy.tasks.fidelity import fidelity, fidelity_task
from tests.deploy.word_encoder import INPUTS, LookupModel, WordEncoder, random_texts


def _vectors(num_texts: int = 30, *, noise: float = 0.0) -> np.ndarray:
    clean_ND = np.random.default_rng(0).standard_normal((num_texts, 8))
    return normalise(clean_ND + noise * np.random.default_rng(1).standard_normal(clean_ND.shape)).astype(np.float32)


def test_the_float_model_agrees_with_itself() -> None:
    result = fidelity(_vectors(), _vectors())
    assert result.score == pytest.approx(1.0)
    assert result.details["max_abs_difference"] == 0.0
    assert result.details["relative_error"] == 0.0
    assert result.details["mean_cosine"] == pytest.approx(1.0)


def test_figures_equal_a_double_loop_over_pairs() -> None:
    reference_ND, vectors_ND = _vectors(), _vectors(noise=0.3)
    expected, found = [], []
    for i in range(30):
        for j in range(i + 1, 30):
            expected.append(float(np.dot(reference_ND[i].astype(np.float64), reference_ND[j])))
            found.append(float(np.dot(vectors_ND[i].astype(np.float64), vectors_ND[j])))
    result = fidelity(reference_ND, vectors_ND)
    assert result.score == pytest.approx(np.corrcoef(rankdata(expected), rankdata(found))[0, 1], abs=1e-6)
    assert result.details["pearson"] == pytest.approx(np.corrcoef(expected, found)[0, 1], abs=1e-6)
    assert result.details["max_abs_difference"] == pytest.approx(np.abs(np.subtract(expected, found)).max(), abs=1e-6)
    error = np.sqrt(((vectors_ND - reference_ND) ** 2).sum()) / np.sqrt((reference_ND**2).sum())
    assert result.details["relative_error"] == pytest.approx(error, rel=1e-5)
    assert result.details["min_cosine"] == pytest.approx((reference_ND * vectors_ND).sum(1).min(), abs=1e-6)


def test_many_texts_are_compared_on_a_fixed_sample_of_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = fidelity(_vectors(200), _vectors(200, noise=0.3))
    monkeypatch.setattr(fidelity_module, "_MAX_PAIRS", 5000)
    sample = fidelity(_vectors(200), _vectors(200, noise=0.3))
    assert sample == fidelity(_vectors(200), _vectors(200, noise=0.3))
    assert sample != everything
    # 5,000 of 19,900 pairs: the correlation's standard error is about (1 - r^2) / sqrt(5000) < 0.005.
    assert sample.score == pytest.approx(everything.score, abs=0.02)


def test_more_noise_scores_lower() -> None:
    encoder, texts = WordEncoder(), random_texts(40)
    task = fidelity_task(texts, encoder, LookupModel().infer, pooling="mean", input_names=INPUTS, batch_size=8)
    scores = [task.evaluate(LookupModel(noise=noise).infer).score for noise in (0.0, 0.1, 0.5)]
    assert scores[0] == pytest.approx(1.0)
    assert scores[0] > scores[1] > scores[2]
    assert task.num_examples == 40


def test_too_few_texts_and_foreign_embeddings_are_refused() -> None:
    with pytest.raises(ValueError, match="at least three different texts; got 2 among 2"):
        fidelity_task(["w4", "w5"], WordEncoder(), LookupModel().infer, pooling="mean", input_names=INPUTS)
    with pytest.raises(ValueError, match="got 2 among 9"):
        fidelity_task(["w4", "w5", "w5"] * 3, WordEncoder(), LookupModel().infer, pooling="mean", input_names=INPUTS)
    with pytest.raises(ValueError, match=r"\(30, 4\) cannot be compared with \(30, 8\)"):
        fidelity(_vectors(), _vectors()[:, :4])
