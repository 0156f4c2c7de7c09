"""Softmax variants against formulas written out in numpy float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from train.attention.quiet_attention import MASK_VALUE
from train.attention.settings import AttentionSettings
from train.attention.softmax import (
    attention_probabilities,
    clipped_softmax,
    clipped_softmax_per_row,
    softmax_off_by_one,
)


def _scores(seed: int = 0, *, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 3, 5, 7, generator=generator, dtype=dtype) * 3


def _exp_rows(scores: torch.Tensor) -> np.ndarray:
    return np.asarray(np.exp(scores.numpy()))


@pytest.mark.parametrize(("gamma", "zeta"), [(0.0, 1.0), (-0.05, 1.0), (-0.05, 1.1), (0.0, 1.2)])
def test_clipped_softmax_equals_its_formula(gamma: float, zeta: float) -> None:
    scores = _scores()
    exp = _exp_rows(scores)
    expected = np.clip((zeta - gamma) * exp / exp.sum(-1, keepdims=True) + gamma, 0, 1)
    np.testing.assert_allclose(clipped_softmax(scores, gamma=gamma, zeta=zeta), expected, atol=1e-15)


def test_per_row_gamma_is_minus_alpha_over_the_rows_number_of_keys() -> None:
    scores, alpha = _scores(), 2.0
    num_keys = torch.arange(1, 6).view(1, 1, 5, 1)
    mask = torch.where(torch.arange(7) < num_keys, 0.0, MASK_VALUE)
    found = clipped_softmax_per_row(scores + mask, alpha=alpha, num_keys=num_keys)
    for row in range(5):
        exp = _exp_rows(scores[:, :, row, : row + 1])
        gamma = -alpha / (row + 1)
        expected = np.clip((1 - gamma) * exp / exp.sum(-1, keepdims=True) + gamma, 0, 1)
        np.testing.assert_allclose(found[:, :, row, : row + 1], expected, atol=1e-15)
        assert not found[:, :, row, row + 1 :].any()


def test_softmax_off_by_one_equals_its_formula() -> None:
    scores = _scores()
    exp = _exp_rows(scores)
    np.testing.assert_allclose(softmax_off_by_one(scores), exp / (1 + exp.sum(-1, keepdims=True)), atol=1e-15)


ALL_KINDS = [
    AttentionSettings(),
    AttentionSettings(softmax="clipped", gamma=-0.1),
    AttentionSettings(softmax="clipped", gamma=-0.1, zeta=1.05),
    AttentionSettings(softmax="clipped_per_row", alpha=2.0),
    AttentionSettings(softmax="off_by_one"),
]


@pytest.mark.parametrize("kind", ALL_KINDS, ids=lambda kind: f"{kind.softmax}-{kind.zeta}")
@given(scale=st.floats(1e-3, 1e4), shift=st.floats(-3e4, 3e4), seed=st.integers(0, 9))
@settings(max_examples=25, deadline=None)
def test_probabilities_are_finite_and_in_range_for_any_scores(
    kind: AttentionSettings, scale: float, shift: float, seed: int
) -> None:
    scores = _scores(seed, dtype=torch.float32) * scale + shift
    found = attention_probabilities(scores, kind, num_keys=7)
    assert torch.isfinite(found).all()
    assert found.min() >= 0
    assert found.max() <= 1 + 1e-6  # (1 - gamma) p + gamma may round one unit above 1
    assert found.sum(-1).max() <= 1.1 + 1e-5  # only zeta > 1 lets a row exceed 1


@pytest.mark.parametrize("masked", [MASK_VALUE, torch.finfo(torch.float32).min])
@pytest.mark.parametrize("kind", ALL_KINDS, ids=lambda kind: f"{kind.softmax}-{kind.zeta}")
def test_a_fully_masked_row_is_finite_with_finite_gradients(kind: AttentionSettings, masked: float) -> None:
    scores = _scores(dtype=torch.float32).requires_grad_()
    found = attention_probabilities(scores + masked, kind, num_keys=torch.zeros(2, 1, 1, 1, dtype=torch.long))
    found.square().sum().backward()  # type: ignore[no-untyped-call]
    assert torch.isfinite(found).all()
    assert scores.grad is not None
    assert torch.isfinite(scores.grad).all()
    if kind.softmax == "off_by_one":
        assert not found.any()


def test_clipping_makes_exact_zeros_and_leaves_the_row_unnormalised() -> None:
    scores = torch.tensor([[4.0, 0.0, 0.0, 0.0]])
    found = clipped_softmax(scores, gamma=-0.1)
    assert found[0, 1:].tolist() == [0.0, 0.0, 0.0]
    assert 0.9 < found.sum() < 1.0


@pytest.mark.parametrize("kind", ALL_KINDS, ids=lambda kind: f"{kind.softmax}-{kind.zeta}")
def test_gradients_equal_finite_differences_away_from_the_clip(kind: AttentionSettings) -> None:
    scores = _scores()[:1, :1, :2].clone().requires_grad_()  # float64; no probability sits on a clip boundary
    assert torch.autograd.gradcheck(lambda x: attention_probabilities(x, kind, num_keys=7), scores)
