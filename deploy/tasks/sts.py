"""Semantic textual similarity: do cosine similarities of sentence pairs rank as people's scores do?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy import stats

from deploy.graphs.graph_info import Pooling
from deploy.tasks.length_batches import Encoder, LengthBatch, length_batches
from deploy.tasks.sentence_vectors import embed
from deploy.tasks.task import Infer, TaskResult


class ScoredPair(Protocol):
    """Two sentences and people's score; :class:`deploy.data.text_data.SentencePair` is one."""

    @property
    def first(self) -> str:
        """First sentence."""

    @property
    def second(self) -> str:
        """Second sentence."""

    @property
    def score(self) -> float:
        """Similarity on any scale, higher is more similar."""


def rank_correlation(first_N: np.ndarray, second_N: np.ndarray) -> float:
    """Spearman's correlation with ties averaged; 0 when one side is constant, which ranks nothing."""
    if np.ptp(first_N) == 0 or np.ptp(second_N) == 0:
        return 0.0
    return float(stats.spearmanr(first_N, second_N).statistic)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StsTask:
    """Spearman correlation between cosine similarities and gold scores."""

    batches: tuple[LengthBatch, ...]
    """First sentences, then second sentences, 2N rows."""
    gold: np.ndarray
    """Scores, float64 (N,)."""
    pooling: Pooling
    name: str = "sts"
    metric: str = "Spearman"
    higher_is_better: bool = True

    @property
    def num_examples(self) -> int:
        """Number of pairs."""
        return len(self.gold)

    def evaluate(self, infer: Infer) -> TaskResult:
        """Spearman of a model; Pearson as a detail."""
        vectors = embed(infer, self.batches, pooling=self.pooling)
        first_ND, second_ND = vectors[: len(self.gold)], vectors[len(self.gold) :]
        cosine_N = np.einsum("nd,nd->n", first_ND, second_ND, dtype=np.float64)
        spearman = rank_correlation(cosine_N, self.gold)
        pearson = float(stats.pearsonr(cosine_N, self.gold).statistic) if spearman else 0.0
        return TaskResult(score=spearman, details={"pearson": pearson})


def sts_task(
    pairs: Sequence[ScoredPair],
    encoder: Encoder,
    *,
    pooling: Pooling,
    input_names: Sequence[str],
    batch_size: int = 32,
    length: int | None = None,
) -> StsTask:
    """Encode the pairs once, so that every candidate sees the same batches.

    Raises:
        ValueError: fewer than three pairs, or all with the same score: nothing to rank.
    """
    gold_N = np.array([pair.score for pair in pairs], dtype=np.float64)
    if len(pairs) < 3 or np.ptp(gold_N) == 0:
        raise ValueError(f"sts needs at least three pairs with different scores; got {len(pairs)}")
    rows = encoder.encode([pair.first for pair in pairs] + [pair.second for pair in pairs])
    batches = length_batches(encoder, rows, input_names=input_names, batch_size=batch_size, length=length)
    return StsTask(batches=batches, gold=gold_N, pooling=pooling)
