"""The path that trains clipped attention gives what the formula says, whole or in blocks, and so do its gradients."""

from __future__ import annotations

import pytest
import torch

from train.attention.explicit_attention import clipped_context
from train.attention.masks import MASK_VALUE
from train.attention.settings import AttentionSettings

# Legend: B batch, H heads of queries, G heads of keys and values, T queries, S keys, d features of a head.
B, H, G, T, S, d = 2, 4, 2, 6, 7, 3
KINDS = [
    AttentionSettings(softmax="clipped", gamma=-0.1),
    AttentionSettings(softmax="clipped", gamma=-0.1, zeta=1.1),
    AttentionSettings(softmax="clipped", alpha=1.0, length=8),
    AttentionSettings(softmax="clipped_per_row", alpha=0.7),
    AttentionSettings(softmax="clipped_per_row", alpha=0.7, zeta=1.2),
]


def inputs(*, grouped: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    heads = G if grouped else H
    shapes = ((B, H, T, d), (B, heads, S, d), (B, heads, S, d))
    query, key, value = (
        (2 * torch.randn(shape, generator=generator, dtype=torch.float64)).requires_grad_() for shape in shapes
    )
    return query, key, value


def padding_mask() -> torch.Tensor:
    mask_B11S = torch.zeros(B, 1, 1, S, dtype=torch.float64)
    mask_B11S[1, ..., 4:] = MASK_VALUE
    return mask_B11S


def reference(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, settings: AttentionSettings
) -> torch.Tensor:
    """Row by row, in plain loops."""
    rows = torch.zeros(B, H, T, d, dtype=torch.float64)
    for b in range(B):
        for h in range(H):
            g = h * key.shape[1] // H
            for t in range(T):
                scores = key[b, g] @ query[b, h, t] * 0.5
                seen = torch.ones(S, dtype=torch.bool)
                if mask is not None:
                    seen = mask[b % mask.shape[0], 0, t % mask.shape[2]] == 0
                p = torch.zeros(S, dtype=torch.float64)
                p[seen] = torch.softmax(scores[seen], dim=0)
                if settings.softmax == "clipped":
                    gamma = settings.clip_gamma
                else:
                    assert settings.alpha is not None
                    gamma = -settings.alpha / int(seen.sum())
                rows[b, h, t] = ((settings.zeta - gamma) * p + gamma).clamp(0, 1) @ value[b, g]
    return rows


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("pattern", ["none", "padding", "causal"])
@pytest.mark.parametrize("settings", KINDS)
def test_the_context_is_that_of_the_formula(
    settings: AttentionSettings, pattern: str, *, grouped: bool, blocks: bool
) -> None:
    query, key, value = (x.detach() for x in inputs(grouped=grouped))
    masks = {
        "none": None,
        "padding": padding_mask(),
        "causal": torch.triu(torch.full((1, 1, T, S), MASK_VALUE, dtype=torch.float64), diagonal=2),
    }
    mask = masks[pattern]
    context = clipped_context(
        query, key, value, mask, scale=0.5, settings=settings, kept=0 if blocks else 10**9, block=B * H * S * 4
    )
    expected = reference(query, key, value, mask, settings)
    assert (expected == 0).sum() < expected.numel() / 2
    assert torch.allclose(context, expected, atol=1e-12)


@pytest.mark.parametrize("settings", KINDS)
def test_blocks_have_the_gradients_of_the_whole(settings: AttentionSettings) -> None:
    weight = torch.randn(B, H, T, d, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    gradients = []
    for kept in (0, 10**9):
        leaves = inputs(grouped=True)
        query, key, value = leaves
        context = clipped_context(query, key, value, padding_mask(), scale=0.5, settings=settings, kept=kept, block=1)
        gradients.append(torch.autograd.grad((context * weight).sum(), leaves))
    for blockwise, whole in zip(*gradients, strict=True):
        assert torch.allclose(blockwise, whole, atol=1e-12)


def test_the_gradient_is_that_of_finite_differences() -> None:
    settings = AttentionSettings(softmax="clipped", gamma=-0.01)
    leaves = inputs(grouped=False)

    def context(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return clipped_context(
            query, key, value, padding_mask(), scale=0.5, settings=settings, kept=0, block=B * H * S * 4
        )

    assert torch.autograd.gradcheck(context, leaves)


def test_dropout_in_blocks_draws_the_same_in_both_passes() -> None:
    settings = AttentionSettings(softmax="clipped", gamma=-0.01)
    query, key, value = inputs(grouped=False)
    torch.manual_seed(0)
    context = clipped_context(
        query, key, value, None, scale=0.5, settings=settings, dropout=0.5, kept=0, block=B * H * S * 2
    )
    (gradient,) = torch.autograd.grad(context.sum(), value)
    torch.manual_seed(0)
    again = clipped_context(
        query, key, value, None, scale=0.5, settings=settings, dropout=0.5, kept=0, block=B * H * S * 2
    )
    assert torch.equal(context, again)
    # The context is linear in the values, with the dropped probabilities as its coefficients.
    assert torch.allclose((gradient * value).sum(), context.sum())
