"""Embeddings of many sentences from a feature-extraction model.

Shapes: N sentences, D features.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from deploy.graphs.graph_info import Pooling
from deploy.tasks.embedding import normalise, pool
from deploy.tasks.length_batches import LengthBatch
from deploy.tasks.task import Infer

FEATURES = "last_hidden_state"
"""Name of the output that a feature-extraction graph has."""


def embed(infer: Infer, batches: Sequence[LengthBatch], *, pooling: Pooling) -> np.ndarray:
    """Normalised embeddings, float32 (N, D), in the order of the texts that the batches were made from.

    Raises:
        ValueError: the graph has no token features, or an embedding is not finite.
    """
    rows_N = np.concatenate([batch.rows for batch in batches])
    pooled = []
    for batch in batches:
        outputs = infer(batch.feeds)
        if FEATURES not in outputs:
            raise ValueError(f"the graph has no output '{FEATURES}'; it has {', '.join(sorted(outputs))}")
        pooled.append(pool(outputs[FEATURES], batch.feeds["attention_mask"], pooling))
    vectors_ND = np.concatenate(pooled)
    if not np.isfinite(vectors_ND).all():
        bad = int(np.count_nonzero(~np.isfinite(vectors_ND).all(axis=1)))
        raise ValueError(f"{bad} of {len(vectors_ND)} embeddings are not finite")
    ordered_ND = np.empty_like(vectors_ND)
    ordered_ND[rows_N] = vectors_ND
    return normalise(ordered_ND)
