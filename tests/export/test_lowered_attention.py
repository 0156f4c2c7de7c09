"""The lowered pieces against their formulas, in float64 and without PyTorch's softmax."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from export.lowered_attention import LoweredGate, lowered_probabilities
from train.attention.gates import build_gate
from train.attention.quiet_attention import MASK_VALUE
from train.attention.settings import AttentionSettings


def _scores(num_keys: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Masked scores (2, 3, 4, 6) and their mask; the second sequence has ``num_keys`` keys."""
    generator = torch.Generator().manual_seed(seed)
    mask_B11S = torch.zeros(2, 1, 1, 6)
    mask_B11S[1, ..., num_keys:] = MASK_VALUE
    return torch.randn(2, 3, 4, 6, generator=generator) * 3 + mask_B11S, mask_B11S


def _exponentials(scores: torch.Tensor) -> np.ndarray:
    return np.asarray(np.exp(scores.double().numpy()))


@given(gamma=st.floats(-0.5, 0.0), num_keys=st.integers(1, 6), seed=st.integers(0, 99))
def test_the_short_form_times_its_factor_is_clipped_softmax(gamma: float, num_keys: int, seed: int) -> None:
    scores, mask = _scores(num_keys, seed)
    module = lowered_probabilities(AttentionSettings(softmax="clipped", gamma=gamma), fold=True)
    exponentials = _exponentials(scores)
    softmax = exponentials / exponentials.sum(-1, keepdims=True)
    expected = np.clip((1 - gamma) * softmax + gamma, 0, 1)
    np.testing.assert_allclose(module(scores, mask).numpy() * (1 - gamma), expected, atol=1e-6)


def test_upper_stretch_keeps_the_literal_form_in_both_lowerings() -> None:
    scores, mask = _scores(4)
    exponentials = _exponentials(scores)
    softmax = exponentials / exponentials.sum(-1, keepdims=True)
    expected = np.clip((1.2 + 0.1) * softmax - 0.1, 0, 1)
    for fold in (True, False):
        module = lowered_probabilities(AttentionSettings(softmax="clipped", gamma=-0.1, zeta=1.2), fold=fold)
        np.testing.assert_allclose(module(scores, mask).numpy(), expected, atol=1e-6)
    assert expected.max() == 1.0


def test_gamma_per_row_counts_the_keys_that_are_not_padding() -> None:
    scores, mask = _scores(2)
    module = lowered_probabilities(AttentionSettings(softmax="clipped_per_row", alpha=1.5), fold=True)
    exponentials = _exponentials(scores)
    softmax = exponentials / exponentials.sum(-1, keepdims=True)
    gamma = -1.5 / np.array([6, 2]).reshape(2, 1, 1, 1)
    np.testing.assert_allclose(module(scores, mask).numpy(), np.clip((1 - gamma) * softmax + gamma, 0, 1), atol=1e-6)


def test_off_by_one_adds_one_to_the_denominator() -> None:
    scores, mask = _scores(3)
    module = lowered_probabilities(AttentionSettings(softmax="off_by_one"), fold=True)
    exponentials = _exponentials(scores)
    np.testing.assert_allclose(
        module(scores, mask).numpy(), exponentials / (1 + exponentials.sum(-1, keepdims=True)), atol=1e-6
    )


@pytest.mark.parametrize("softmax", ["vanilla", "clipped", "clipped_per_row", "off_by_one"])
def test_a_row_of_padding_alone_is_finite(softmax: str) -> None:
    values = {"clipped": {"gamma": -0.1}, "clipped_per_row": {"alpha": 2.0}}.get(softmax, {})
    scores, mask = _scores(0)
    module = lowered_probabilities(AttentionSettings(softmax=softmax, **values), fold=True)  # type: ignore[arg-type]
    assert torch.isfinite(module(scores, mask)).all()


@pytest.mark.parametrize("kind", ["linear", "mlp", "all_heads_linear"])
def test_a_lowered_gate_equals_the_gate_head_by_head(kind: str) -> None:
    hidden = {"gate_hidden": 5} if kind == "mlp" else {}
    gate = build_gate(AttentionSettings(gate=kind, gate_scale=2.0, **hidden), num_heads=3, hidden_size=12)  # type: ignore[arg-type]
    assert gate is not None
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in gate.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
        hidden_BTD = torch.randn(2, 5, 12, generator=generator)
        expected_BTH = gate(hidden_BTD)
        torch.testing.assert_close(LoweredGate(gate, fold_scale=False)(hidden_BTD), expected_BTH)
        torch.testing.assert_close(LoweredGate(gate, fold_scale=True)(hidden_BTD) * 2.0, expected_BTH)
