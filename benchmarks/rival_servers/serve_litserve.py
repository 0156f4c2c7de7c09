"""LitServe with batching; its own protocol: ``python serve_litserve.py GRAPH PORT``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import litserve
from embedder import Embedder


class EmbeddingApi(litserve.LitAPI):
    """Texts in, embeddings out."""

    def setup(self, device: str) -> None:
        """Open the graph."""
        self._embed = Embedder(Path(sys.argv[1]))

    def decode_request(self, request: dict[str, Any]) -> str:
        """The text of a request."""
        return str(request["text"])

    def predict(self, x: list[str]) -> Any:
        """A batch."""
        return self._embed(list(x))

    def encode_response(self, output: Any) -> dict[str, Any]:
        """One embedding."""
        return {"embedding": output.tolist()}


if __name__ == "__main__":
    api = EmbeddingApi(max_batch_size=16, batch_timeout=0.005)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1)
    server.run(host="127.0.0.1", port=int(sys.argv[2]), generate_client_file=False, log_level="error")
