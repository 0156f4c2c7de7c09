"""The model that every server of the comparison runs: texts to embeddings, in one batch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from deploy.backends.opening import open_backend
from deploy.data.encoding import TextEncoder
from deploy.tasks.embedding import normalise, pool


class Embedder:
    """Tokenizer, graph on OpenVINO, mean pooling.

    Args:
        graph: ONNX file with its tokenizer beside it.
    """

    def __init__(self, graph: Path) -> None:
        self._backend = open_backend("openvino", graph)
        self._encoder = TextEncoder(graph.parent / "tokenizer.json", max_length=128)

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """Embeddings, float32 (texts, features)."""
        feeds = dict(self._encoder.feeds(self._encoder.encode(texts), input_names=self._backend.input_names))
        return normalise(pool(self._backend.infer(feeds)["last_hidden_state"], feeds["attention_mask"], "mean"))
