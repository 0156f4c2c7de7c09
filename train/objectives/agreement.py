"""How much of a float model a quantized one keeps: hidden states, embeddings and their pairwise similarities.

Both models read the same held-out rows. A row's embedding is the mean of its last hidden states, normalised; similarities are
the cosines of all pairs of rows.

Shapes: N rows, D features, B batch, T tokens, P pairs of rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import pearsonr, spearmanr

from train.batches.text_batches import Batch

_TINY = 1e-12  # below any squared norm of a real hidden state in float32


def real_tokens(batch: Mapping[str, torch.Tensor], hidden_BTD: torch.Tensor) -> torch.Tensor:
    """The batch's mask, 1 on real tokens; of images, whose tokens are all real, one of ones: (B, T)."""
    mask_BT = batch.get("attention_mask")
    return torch.ones_like(hidden_BTD[..., 0]) if mask_BT is None else mask_BT


def mean_embeddings(hidden_BTD: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Mean over real tokens, normalised to length 1: (B, D), with gradients where the input has them."""
    weights_BT1 = mask_BT[..., None].to(hidden_BTD.dtype)
    mean_BD = (hidden_BTD * weights_BT1).sum(dim=1) / weights_BT1.sum(dim=1).clamp(min=1.0)
    return torch.nn.functional.normalize(mean_BD, dim=-1)


def relative_error(hidden_BTD: torch.Tensor, reference_BTD: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Squared error over real tokens as a share of the reference's power there: scalar, 0 for equal tensors."""
    weights_BT1 = mask_BT[..., None].to(hidden_BTD.dtype)
    error = ((hidden_BTD - reference_BTD).square() * weights_BT1).sum()
    return error / (reference_BTD.square() * weights_BT1).sum().clamp(min=_TINY)


class HeldOutRows:
    """Held-out rows together with what the float original makes of them."""

    def __init__(self, teacher: torch.nn.Module, batches: Sequence[Batch], *, device: torch.device) -> None:
        """Run the original once.

        Args:
            teacher: maps a batch to an output with ``last_hidden_state`` (B, T, D); already on ``device``.
            batches: ``input_ids`` and ``attention_mask``, or ``pixel_values``; at least three rows altogether.
            device: where to compute.
        """
        self._batches = [{name: tensor.to(device) for name, tensor in batch.items()} for batch in batches]
        self._hidden = self._run(teacher)
        self._similarities_P = self._pairs(self._hidden)

    def figures(self, model: torch.nn.Module, *, prefix: str) -> dict[str, float]:
        """Compare ``model``, as it is now, with the original.

        Returns:
            ``PREFIX_pearson`` and ``PREFIX_spearman`` of the similarities, ``PREFIX_similarity_error`` (root mean square of their
            differences) and ``PREFIX_relative_error`` (root of the hidden states' :func:`relative_error`). A correlation
            that does not exist, because all similarities are equal or one is not finite, is 0.
        """
        hidden = self._run(model)
        similarities_P = self._pairs(hidden)
        error = power = 0.0
        for mine_BTD, theirs_BTD, batch in zip(hidden, self._hidden, self._batches, strict=True):
            keep_BT1 = real_tokens(batch, theirs_BTD)[..., None]
            error += float(((mine_BTD - theirs_BTD).square() * keep_BT1).sum())
            power += float((theirs_BTD.square() * keep_BT1).sum())
        pearson = spearman = 0.0
        if np.isfinite(similarities_P).all() and np.ptp(similarities_P) > 0 and np.ptp(self._similarities_P) > 0:
            pearson = float(pearsonr(similarities_P, self._similarities_P).statistic)
            spearman = float(spearmanr(similarities_P, self._similarities_P).statistic)
        values: Mapping[str, float] = {
            "pearson": pearson,
            "spearman": spearman,
            "similarity_error": float(np.sqrt(np.square(similarities_P - self._similarities_P).mean())),
            "relative_error": float(np.sqrt(error / max(power, _TINY))),
        }
        return {f"{prefix}_{name}": value for name, value in values.items()}

    @torch.inference_mode()
    def _run(self, model: torch.nn.Module) -> list[torch.Tensor]:
        return [model(**batch).last_hidden_state.float() for batch in self._batches]

    def _pairs(self, hidden: list[torch.Tensor]) -> NDArray[np.float64]:
        rows = zip(hidden, self._batches, strict=True)
        embeddings_ND = torch.cat([mean_embeddings(h_BTD, real_tokens(batch, h_BTD)) for h_BTD, batch in rows])
        similarities_NN = (embeddings_ND.double() @ embeddings_ND.double().T).cpu()
        first_P, second_P = torch.triu_indices(len(similarities_NN), len(similarities_NN), offset=1)
        pairs_P: NDArray[np.float64] = similarities_NN[first_P, second_P].numpy()
        return pairs_P
