"""Masked-language-model perplexity: ``exp`` of the mean negative log-likelihood of the tokens chosen for prediction.

As in BERT's training and the paper's evaluation, 15 % of the ordinary tokens are chosen; of these 80 % become the mask
token, 10 % a random token, 10 % stay. The choice depends on the seed and the texts alone, so every candidate predicts
the same tokens from the same inputs.

Shapes: B batch, T tokens, V vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from deploy.tasks.length_batches import Encoder, LengthBatch, length_batches
from deploy.tasks.task import Infer, TaskResult
from deploy.tasks.token_loss import logits_of, token_loss

_MASK_NAMES = ("[MASK]", "<mask>")
_UNCHOSEN = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskingTokens:
    """Ids that masking needs."""

    mask: int
    special: tuple[int, ...]
    """Never chosen for prediction."""


def masking_tokens(tokenizer_file: Path) -> MaskingTokens:
    """Read the mask token and the special tokens from a ``tokenizer.json``.

    Raises:
        ValueError: the tokenizer has no mask token.
    """
    added = json.loads(tokenizer_file.read_text(encoding="utf-8")).get("added_tokens", [])
    special = {entry["content"]: int(entry["id"]) for entry in added if entry.get("special")}
    mask = next((special[name] for name in _MASK_NAMES if name in special), None)
    if mask is None:
        raise ValueError(
            f"{tokenizer_file} has no mask token ({' or '.join(_MASK_NAMES)}); its special tokens are"
            f" {', '.join(sorted(special)) or 'none'}"
        )
    return MaskingTokens(mask=mask, special=tuple(sorted(special.values())))


def mask_rows(
    token_rows: Sequence[np.ndarray],
    *,
    tokens: MaskingTokens,
    vocab_size: int,
    seed: int = 0,
    probability: float = 0.15,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Masked copies of the rows and their labels: the original id where a token was chosen, -1 elsewhere."""
    generator = np.random.default_rng(seed)
    masked, labels = [], []
    for row_T in token_rows:
        draw_T, kind_T = generator.random(len(row_T)), generator.random(len(row_T))
        random_T = generator.integers(0, vocab_size, size=len(row_T))
        chosen_T = (draw_T < probability) & ~np.isin(row_T, tokens.special)
        replacement_T = np.where(kind_T < 0.8, tokens.mask, np.where(kind_T < 0.9, random_T, row_T))
        masked.append(np.where(chosen_T, replacement_T, row_T))
        labels.append(np.where(chosen_T, row_T, _UNCHOSEN))
    return masked, labels


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MlmTask:
    """Perplexity over the chosen tokens."""

    batches: tuple[LengthBatch, ...]
    labels: tuple[np.ndarray, ...]
    """Per text, original id where chosen, -1 elsewhere, int64 (T,)."""
    name: str = "mlm"
    metric: str = "perplexity"
    higher_is_better: bool = False

    @property
    def num_examples(self) -> int:
        """Number of predicted tokens."""
        return sum(int(np.count_nonzero(row != _UNCHOSEN)) for row in self.labels)

    def evaluate(self, infer: Infer) -> TaskResult:
        """Perplexity of a model; the mean negative log-likelihood (nats) and accuracy as details.

        Raises:
            ValueError: the graph has no logits, or they are not finite.
        """
        total, correct = 0.0, 0
        for batch in self.batches:
            logits_BTV = logits_of(infer(batch.feeds))
            for row, logits_TV in zip(batch.rows, logits_BTV, strict=True):
                positions_M = np.flatnonzero(self.labels[row] != _UNCHOSEN)
                found = token_loss(logits_TV[positions_M], self.labels[row][positions_M], what=f"text {row}")
                total += found.nats
                correct += found.correct
        loss = total / self.num_examples
        return TaskResult(score=float(np.exp(loss)), details={"loss": loss, "accuracy": correct / self.num_examples})


def mlm_task(
    texts: Sequence[str],
    encoder: Encoder,
    *,
    tokens: MaskingTokens,
    vocab_size: int,
    input_names: Sequence[str],
    seed: int = 0,
    probability: float = 0.15,
    batch_size: int = 8,
    length: int | None = None,
) -> MlmTask:
    """Encode and mask the texts once. ``tokens`` comes from :func:`masking_tokens`; others as for the batches.

    Raises:
        ValueError: no text, or no token was chosen.
    """
    rows, labels = mask_rows(
        encoder.encode(texts), tokens=tokens, vocab_size=vocab_size, seed=seed, probability=probability
    )
    task = MlmTask(
        batches=length_batches(encoder, rows, input_names=input_names, batch_size=batch_size, length=length),
        labels=tuple(labels),
    )
    if task.num_examples == 0:
        raise ValueError(f"masking chose no token in {len(texts)} texts; give more or longer texts")
    return task
