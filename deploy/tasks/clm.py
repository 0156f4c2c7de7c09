"""Causal-language-model perplexity: ``exp`` of the mean negative log-likelihood of the next token, in windows.

The corpus is one text: cut into consecutive windows of equal length that do not overlap, as perplexity on WikiText-2 is usually
reported. Each window stands alone, so its first token has nothing to be predicted from and is not scored: a window
of T tokens scores T - 1. Tokens behind the last whole window are dropped. No special token is added.

Shapes: B batch, T tokens of a window, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from deploy.tasks.task import Feeds, Infer, TaskResult
from deploy.tasks.token_loss import logits_of, token_loss

USUAL_WINDOW = 512
"""Tokens of a window where nobody says otherwise."""


class DocumentEncoder(Protocol):
    """What the task needs of a tokenizer; :class:`deploy.data.encoding.TextEncoder` is one."""

    def encode_document(self, text: str, /) -> np.ndarray:
        """Every token of a text, int64 (tokens,), without special tokens and not cut."""

    def feeds(
        self, token_rows: Sequence[np.ndarray], /, *, length: int | None, input_names: Sequence[str]
    ) -> dict[str, np.ndarray]:
        """Padded int64 inputs (batch, length) by name."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ClmTask:
    """Perplexity over all tokens of all windows but each window's first."""

    windows: tuple[np.ndarray, ...]
    """Token ids of each window, int64 (T,)."""
    encoder: DocumentEncoder
    input_names: tuple[str, ...]
    batch_size: int
    available: int
    """Whole windows of the text, used or not."""
    name: str = "clm"
    metric: str = "perplexity"
    higher_is_better: bool = False

    @property
    def num_examples(self) -> int:
        """Number of predicted tokens."""
        return sum(len(window) - 1 for window in self.windows)

    def evaluate(self, infer: Infer) -> TaskResult:
        """Perplexity of a model; the mean negative log-likelihood (nats) and accuracy of the next token as details.

        Raises:
            ValueError: the graph has no logits, or they are not finite.
        """
        total, correct = 0.0, 0
        for first, feeds in self._batches():
            for row, logits_TV in enumerate(logits_of(infer(feeds)), start=first):
                found = token_loss(logits_TV[:-1], self.windows[row][1:], what=f"window {row}")
                total += found.nats
                correct += found.correct
        loss = total / self.num_examples
        return TaskResult(score=float(np.exp(loss)), details={"loss": loss, "accuracy": correct / self.num_examples})

    def _batches(self) -> Iterator[tuple[int, Feeds]]:
        """Number of the first window of each batch, and its inputs."""
        for first in range(0, len(self.windows), self.batch_size):
            rows = self.windows[first : first + self.batch_size]
            yield first, self.encoder.feeds(rows, length=None, input_names=self.input_names)


def clm_task(
    document: str,
    encoder: DocumentEncoder,
    *,
    input_names: Sequence[str],
    window: int = USUAL_WINDOW,
    limit: int | None = None,
    batch_size: int = 1,
) -> ClmTask:
    """Encode a text once and cut it into windows.

    Args:
        document: the whole corpus.
        encoder: makes ids and inputs.
        input_names: inputs of the graph.
        window: tokens of a window.
        limit: use the first so many windows.
        batch_size: windows per run; 1 by default, because logits over a large vocabulary are large.

    Raises:
        ValueError: windows too short to predict anything, or a text shorter than one window.
    """
    if window < 2:
        raise ValueError(f"windows of {window} tokens predict nothing; expected at least 2")
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}; expected at least 1")
    ids_N = encoder.encode_document(document)
    number = len(ids_N) // window
    if number == 0:
        raise ValueError(f"the text has {len(ids_N)} tokens; expected at least one window of {window}")
    kept = number if limit is None else min(limit, number)
    return ClmTask(
        windows=tuple(ids_N[: kept * window].reshape(kept, window)),
        encoder=encoder,
        input_names=tuple(input_names),
        batch_size=batch_size,
        available=number,
    )
