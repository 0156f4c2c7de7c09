"""Sentence similarity by regression: the cosine of two mean-pooled embeddings shall be the score that people gave.

Shapes: P pairs of a batch, 2P rows (first sentences, then second ones), T tokens, D features.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import nn

from train.batches.text_batches import Batch
from train.objectives.agreement import mean_embeddings
from train.objectives.learning_task import TaskFigures, TaskLoss

SCORES = "scores"
"""Wanted cosine of each pair, in 0 to 1, (P,)."""


class SentenceSimilarity:
    """The task of a bare encoder."""

    metric = "spearman"

    def loss(self, model: nn.Module, batch: Batch) -> TaskLoss:
        """Mean squared error of the cosines."""
        return TaskLoss(loss=(self._cosines(model, batch) - batch[SCORES]).square().mean())

    def figures(self, model: nn.Module, batches: Sequence[Batch]) -> TaskFigures:
        """``loss``, and ``spearman`` between cosines and scores; 0 where all cosines are equal."""
        device = next(model.parameters()).device
        cosines, scores = [], []
        for batch in batches:
            on_device = {name: x.to(device) for name, x in batch.items()}
            cosines.append(self._cosines(model, on_device).double().cpu().numpy())
            scores.append(batch[SCORES].double().numpy())
        cosine_P, score_P = np.concatenate(cosines), np.concatenate(scores)
        ranked = np.isfinite(cosine_P).all() and np.ptp(cosine_P) > 0 and np.ptp(score_P) > 0
        spearman = float(spearmanr(cosine_P, score_P).statistic) if ranked else 0.0
        loss = float(np.square(cosine_P - score_P).mean())
        return TaskFigures(score=spearman, figures={"loss": loss, "spearman": spearman})

    def inputs(self, batch: Batch) -> Batch:
        """The rows of both sentences."""
        return {name: batch[name] for name in ("input_ids", "attention_mask")}

    def _cosines(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        inputs = self.inputs(batch)
        hidden_BTD = model(**inputs).last_hidden_state.float()
        first_PD, second_PD = mean_embeddings(hidden_BTD, inputs["attention_mask"]).chunk(2)
        return (first_PD * second_PD).sum(-1)
