"""Masking of masked language models: which tokens are to be predicted, and what the model sees in their place.

Of the ordinary tokens a fixed share is chosen, 15 % by default; of these 80 % are shown as the mask token, 10 % as a random ordinary
token, 10 % as themselves (Devlin et al. 2018, section 3.1). Every row predicts the same number of tokens, ``round(0.15 T)``, so the
mean over the parts of a batch, or over processes, is the mean over the batch.

Shapes: B rows, T tokens of a row, M predicted tokens of a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from train.batches.text_batches import Batch
from train.batches.token_windows import TokenWindows

IGNORED = -100
"""Label of a position that is not predicted, as in torch's cross-entropy."""

_MASKED_SHARE, _RANDOM_SHARE = 0.8, 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Masking:
    """How tokens are chosen and hidden.

    Raises:
        ValueError: a share outside (0, 1), or no ordinary token.
    """

    mask_id: int
    special_ids: tuple[int, ...]
    """Never predicted and never shown as a random token; ``mask_id`` among them."""
    vocab_size: int
    share: float = 0.15
    """Predicted tokens of a row."""

    def __post_init__(self) -> None:
        """Check the values."""
        if not 0 < self.share < 1:
            raise ValueError(f"mask_share is {self.share}; expected a share strictly between 0 and 1")
        if len(set(self.special_ids)) >= self.vocab_size:
            raise ValueError(f"all {self.vocab_size} tokens of the vocabulary are special; there is nothing to predict")

    def apply(self, ids_BT: NDArray[np.int64], generator: np.random.Generator) -> Batch:
        """Hide tokens.

        Args:
            ids_BT: rows without padding.
            generator: all that is random.

        Returns:
            ``input_ids`` (B, T), and ``positions`` and ``labels`` (B, M): where in its row a token is predicted, in rising order, and
            its original id. A row with fewer than M ordinary tokens has ``IGNORED`` labels. All int64.
        """
        num_rows, length = ids_BT.shape
        num_predicted = max(1, round(self.share * length))
        special_BT = np.isin(ids_BT, self.special_ids)
        rank_BT = generator.random((num_rows, length)) + special_BT  # special tokens come last
        positions_BM = np.sort(np.argpartition(rank_BT, num_predicted - 1, axis=1)[:, :num_predicted], axis=1)
        original_BM = np.take_along_axis(ids_BT, positions_BM, axis=1)
        predicted_BM = ~np.take_along_axis(special_BT, positions_BM, axis=1)
        kind_BM = generator.random((num_rows, num_predicted))
        random_BM = generator.choice(_ordinary_ids(self.vocab_size, self.special_ids), size=(num_rows, num_predicted))
        shown_BM = np.where(
            kind_BM < _MASKED_SHARE,
            self.mask_id,
            np.where(kind_BM < _MASKED_SHARE + _RANDOM_SHARE, random_BM, original_BM),
        )
        input_BT = ids_BT.copy()
        np.put_along_axis(input_BT, positions_BM, np.where(predicted_BM, shown_BM, original_BM), axis=1)
        arrays = {
            "input_ids": input_BT,
            "positions": positions_BM,
            "labels": np.where(predicted_BM, original_BM, IGNORED),
        }
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for the identity of a run."""
        return {"mask_id": self.mask_id, "special_ids": list(self.special_ids), "mask_share": self.share}


@cache
def _ordinary_ids(vocab_size: int, special_ids: tuple[int, ...]) -> NDArray[np.int64]:
    return np.setdiff1d(np.arange(vocab_size), special_ids)


class MaskedWindows:
    """Windows with fresh masks at every update: a function of the seed and the update, whoever computes it."""

    def __init__(self, windows: TokenWindows, masking: Masking, *, seed: int) -> None:
        self._windows, self._masking, self._seed = windows, masking, seed

    def identity(self) -> dict[str, Any]:
        """What decides the batches."""
        return self._windows.identity() | self._masking.to_dict()

    def batch(self, step: int, *, part: int = 0, num_parts: int = 1) -> Batch:
        """One part of batch ``step``; the whole batch is masked, so every division of it sees the same masks."""
        generator = np.random.default_rng((self._seed, step))
        whole = self._masking.apply(self._windows.rows(step), generator)
        return {name: tensor[part::num_parts] for name, tensor in whole.items()}
