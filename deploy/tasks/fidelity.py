"""Fidelity: how closely embeddings and their pairwise similarities follow those of the float model. Needs no labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from deploy.graphs.graph_info import Pooling
from deploy.tasks.length_batches import Encoder, LengthBatch, length_batches
from deploy.tasks.sentence_vectors import embed
from deploy.tasks.sts import rank_correlation
from deploy.tasks.task import Infer, TaskResult

_MAX_PAIRS = 500_000
"""All pairs up to 1,000 texts; a fixed random sample of this many beyond, so that memory stays bounded."""


def _pairs(num_texts: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the pairs of different texts to compare."""
    if num_texts * (num_texts - 1) // 2 <= _MAX_PAIRS:
        first_P, second_P = np.triu_indices(num_texts, k=1)
        return first_P, second_P
    generator = np.random.default_rng(0)
    first_P = generator.integers(0, num_texts, size=_MAX_PAIRS)
    # An offset of 1 to N - 1 never pairs a text with itself.
    second_P = (first_P + generator.integers(1, num_texts, size=_MAX_PAIRS)) % num_texts
    return first_P, second_P


def fidelity(reference_ND: np.ndarray, vectors_ND: np.ndarray) -> TaskResult:
    """Agreement of normalised embeddings with the reference's.

    The score is the Spearman correlation of pairwise cosine similarities. Details: ``pearson`` and
    ``max_abs_difference`` of the similarities; ``mean_cosine`` and ``min_cosine`` between an embedding and its reference; and
    ``relative_error`` = ``|E - R| / |R|`` over all embeddings (Frobenius).

    Raises:
        ValueError: different shapes, or fewer than three texts.
    """
    if reference_ND.shape != vectors_ND.shape or len(vectors_ND) < 3:
        raise ValueError(
            f"embeddings of shape {vectors_ND.shape} cannot be compared with {reference_ND.shape}:"
            " expected equal shapes of at least three texts"
        )
    first_P, second_P = _pairs(len(vectors_ND))
    expected_P = np.einsum("pd,pd->p", reference_ND[first_P], reference_ND[second_P], dtype=np.float64)
    found_P = np.einsum("pd,pd->p", vectors_ND[first_P], vectors_ND[second_P], dtype=np.float64)
    cosine_N = np.einsum("nd,nd->n", reference_ND, vectors_ND, dtype=np.float64)
    spearman = rank_correlation(expected_P, found_P)
    return TaskResult(
        score=spearman,
        details={
            "pearson": float(stats.pearsonr(expected_P, found_P).statistic) if spearman else 0.0,
            "max_abs_difference": float(np.abs(expected_P - found_P).max()),
            "mean_cosine": float(cosine_N.mean()),
            "min_cosine": float(cosine_N.min()),
            "relative_error": float(np.linalg.norm(vectors_ND - reference_ND) / np.linalg.norm(reference_ND)),
        },
    )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FidelityTask:
    """Spearman correlation of pairwise similarities with those of the float model."""

    batches: tuple[LengthBatch, ...]
    reference: np.ndarray
    """Normalised embeddings of the float model, float32 (N, D)."""
    pooling: Pooling
    name: str = "fidelity"
    metric: str = "Spearman to float"
    higher_is_better: bool = True

    @property
    def num_examples(self) -> int:
        """Number of texts."""
        return len(self.reference)

    def evaluate(self, infer: Infer) -> TaskResult:
        """Agreement of a model with the float model."""
        return fidelity(self.reference, embed(infer, self.batches, pooling=self.pooling))


def fidelity_task(
    texts: Sequence[str],
    encoder: Encoder,
    float_infer: Infer,
    *,
    pooling: Pooling,
    input_names: Sequence[str],
    batch_size: int = 32,
    length: int | None = None,
) -> FidelityTask:
    """Encode the texts once and embed them with the float model.

    Raises:
        ValueError: fewer than three texts that differ to the encoder: nothing to rank.
    """
    rows = encoder.encode(texts)
    different = len({tuple(row) for row in rows})
    if different < 3:
        raise ValueError(f"fidelity needs at least three different texts; got {different} among {len(texts)}")
    batches = length_batches(encoder, rows, input_names=input_names, batch_size=batch_size, length=length)
    return FidelityTask(batches=batches, reference=embed(float_infer, batches, pooling=pooling), pooling=pooling)
