"""Sentence embeddings from token features: pooling over the attended tokens, then L2 normalisation.

Shapes: B batch, T tokens, D features, N vectors.
"""

from __future__ import annotations

import numpy as np

from deploy.graphs.graph_info import Pooling


def pool(features_BTD: np.ndarray, mask_BT: np.ndarray, pooling: Pooling) -> np.ndarray:
    """One vector per sentence, float32 (B, D), not normalised.

    Args:
        features_BTD: Token features.
        mask_BT: 1 for tokens, 0 for padding.
        pooling: ``mean`` averages the attended tokens (a row without any gives zeros), ``cls`` takes the first token.
    """
    if pooling == "cls":
        return features_BTD[:, 0].astype(np.float32)
    weights_BT1 = mask_BT[:, :, None].astype(np.float32)
    totals_BD = (features_BTD.astype(np.float32) * weights_BT1).sum(axis=1)
    pooled_BD: np.ndarray = totals_BD / np.maximum(weights_BT1.sum(axis=1), 1.0)
    return pooled_BD


def normalise(vectors_ND: np.ndarray) -> np.ndarray:
    """Rows scaled to length 1; a row of zeros stays zero."""
    norms_N1 = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    unit_ND: np.ndarray = vectors_ND / np.where(norms_N1 > 0, norms_N1, 1.0)
    return unit_ND
