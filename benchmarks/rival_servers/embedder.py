"""The model that every server of the comparison runs: texts to embeddings, in one batch, as ``quietformer serve`` does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from deploy.backends.opening import open_backend
from deploy.data.encoding import TextEncoder
from deploy.serving.batch_assembly import padded_length
from deploy.tasks.embedding import normalise, pool

MAX_BATCH = 16
"""Rows of one run, in every server."""
MAX_WAIT = 0.005
"""Seconds that a server which cannot do without waits for a batch to fill."""


class Embedder:
    """Tokenizer, the session of ONNX Runtime with the settings of ``quietformer serve``, mean pooling.

    Args:
        graph: ONNX file with its tokenizer beside it.
    """

    def __init__(self, graph: Path) -> None:
        self._backend = open_backend("onnxruntime", graph)
        info = self._backend.info
        assert info is not None
        self._longest = info.max_length
        self._encoder = TextEncoder(graph.parent / "tokenizer.json", max_length=self._longest or 512)
        for rows in (1, MAX_BATCH):  # a warm-up, as ours
            self(["a quiet model " * 20] * rows)

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """Embeddings, float32 (texts, features)."""
        rows = self._encoder.encode(texts)
        length = padded_length(max(map(len, rows)), self._longest)
        feeds = dict(self._encoder.feeds(rows, length=length, input_names=self._backend.input_names))
        feeds = {name: array.astype(self._backend.input_types[name], copy=False) for name, array in feeds.items()}
        features = self._backend.infer(feeds)["last_hidden_state"]
        return normalise(pool(features, feeds["attention_mask"], "mean")).astype(np.float32)
