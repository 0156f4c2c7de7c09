"""How well logits predict given tokens: what every language-model perplexity is made of.

Shapes: N predicted tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

LOGITS = "logits"
"""Name of the output that a language-model graph has."""
_ROWS_AT_ONCE = 128
"""Rows taken to float64 together: 50 MB at a vocabulary of 50,000, however long the text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenLoss:
    """Sums over predicted tokens."""

    nats: float
    """Negative log-likelihood."""
    correct: int
    """Tokens that were the most likely ones."""


def token_loss(logits_NV: np.ndarray, targets_N: np.ndarray, *, what: str) -> TokenLoss:
    """Negative log-likelihood of ``targets_N`` under ``softmax(logits_NV)``, summed in float64.

    Args:
        logits_NV: float, any precision.
        targets_N: ids below V.
        what: the text in question, for messages.

    Raises:
        ValueError: a logit is not finite.
    """
    nats, correct = 0.0, 0
    for start in range(0, len(targets_N), _ROWS_AT_ONCE):
        rows_NV = logits_NV[start : start + _ROWS_AT_ONCE].astype(np.float64)
        targets = targets_N[start : start + _ROWS_AT_ONCE]
        if not np.isfinite(rows_NV).all():
            raise ValueError(f"logits of {what} are not finite")
        nats += float((logsumexp(rows_NV, axis=1) - rows_NV[np.arange(len(targets)), targets]).sum())
        correct += int(np.count_nonzero(rows_NV.argmax(axis=1) == targets))
    return TokenLoss(nats=nats, correct=correct)


def logits_of(outputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """The logits among a graph's outputs.

    Raises:
        ValueError: there are none.
    """
    if LOGITS not in outputs:
        raise ValueError(f"the graph has no output '{LOGITS}'; it has {', '.join(sorted(outputs))}")
    return outputs[LOGITS]
