"""Agreement of hidden states and similarities with a float original."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr, spearmanr
from torch import nn

from train.batches.text_batches import Batch, sequential_batches
from train.objectives.agreement import HeldOutRows, mean_embeddings, relative_error


class _Table(nn.Module):
    """Looks a row up; ``change`` stands for quantization."""

    def __init__(self, change: Callable[[torch.Tensor], torch.Tensor] = lambda x: x) -> None:
        super().__init__()
        self.table = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
        self.change = change

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> SimpleNamespace:
        noise = torch.where(attention_mask[..., None].bool(), 0.0, 100.0)
        return SimpleNamespace(last_hidden_state=self.change(self.table[input_ids]) + noise)


def _batches() -> list[Batch]:
    generator = np.random.default_rng(0)
    rows = [generator.integers(1, 40, size=generator.integers(2, 8)) for _ in range(10)]
    return sequential_batches(rows, batch_size=4, pad_id=0)


def test_a_model_agrees_with_itself_entirely() -> None:
    figures = HeldOutRows(_Table(), _batches(), device=torch.device("cpu")).figures(_Table(), prefix="float")
    assert figures["float_pearson"] == pytest.approx(1.0)
    assert figures["float_spearman"] == pytest.approx(1.0)
    assert figures["float_similarity_error"] == 0.0
    assert figures["float_relative_error"] == 0.0


def test_figures_are_those_of_pooled_rows_one_by_one() -> None:
    changed = _Table(lambda x: x.round())
    figures = HeldOutRows(_Table(), _batches(), device=torch.device("cpu")).figures(changed, prefix="q")
    similarities = []
    for model in (_Table(), changed):
        rows = []
        for batch in _batches():
            for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True):
                row = model.change(model.table[ids[mask.bool()]]).mean(0)
                rows.append((row / row.norm()).numpy())
        matrix = np.array(rows) @ np.array(rows).T
        similarities.append(matrix[np.triu_indices(len(rows), 1)])
    assert figures["q_pearson"] == pytest.approx(pearsonr(*similarities).statistic, abs=1e-6)
    assert figures["q_spearman"] == pytest.approx(spearmanr(*similarities).statistic, abs=1e-6)
    error = np.sqrt(np.mean((similarities[0] - similarities[1]) ** 2))
    assert figures["q_similarity_error"] == pytest.approx(error, abs=1e-6)


def test_a_model_whose_outputs_are_not_finite_or_all_equal_correlates_with_nothing() -> None:
    held_out = HeldOutRows(_Table(), _batches(), device=torch.device("cpu"))
    assert held_out.figures(_Table(lambda x: x * torch.nan), prefix="q")["q_pearson"] == 0.0
    assert held_out.figures(_Table(torch.ones_like), prefix="q")["q_spearman"] == 0.0


def test_relative_error_ignores_padding() -> None:
    reference = torch.tensor([[[3.0, 4.0], [9.0, 9.0]]])
    moved = torch.tensor([[[3.0, 5.0], [0.0, 0.0]]])
    assert float(relative_error(moved, reference, torch.tensor([[1, 0]]))) == pytest.approx(1 / 25)


def test_a_fully_padded_row_has_a_finite_embedding() -> None:
    assert torch.isfinite(mean_embeddings(torch.ones(1, 2, 3), torch.zeros(1, 2, dtype=torch.int64))).all()
