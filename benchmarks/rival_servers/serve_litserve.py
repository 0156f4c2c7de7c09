"""LitServe with batching: ``python serve_litserve.py GRAPH PORT``; it has a protocol of its own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import litserve
import numpy as np
from embedder import MAX_BATCH, MAX_WAIT, Embedder


class EmbeddingApi(litserve.LitAPI):
    """Texts in, embeddings out."""

    def setup(self, device: str) -> None:
        """Open the graph, in the worker's process."""
        self._embed = Embedder(Path(sys.argv[1]))

    def decode_request(self, request) -> str:  # type: ignore[no-untyped-def]  # a type would change the route
        """The text of one request."""
        return str(request["text"])

    def predict(self, x: list[str] | np.ndarray) -> np.ndarray:
        """Answer a batch."""
        return np.asarray(self._embed(list(x)))

    def encode_response(self, output: np.ndarray) -> dict[str, Any]:
        """One row."""
        return {"embedding": output.tolist()}


if __name__ == "__main__":
    api = EmbeddingApi(max_batch_size=MAX_BATCH, batch_timeout=MAX_WAIT)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1)
    server.run(
        host="127.0.0.1", port=int(sys.argv[2]), num_api_servers=1, generate_client_file=False, log_level="warning"
    )
