"""The kserve SDK, which does not batch: ``python serve_kserve.py GRAPH PORT``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import kserve
from embedder import Embedder


class EmbeddingModel(kserve.Model):
    """Texts in, embeddings out."""

    def __init__(self, graph: Path) -> None:
        super().__init__("rival")
        self._embed = Embedder(graph)
        self.ready = True

    def predict(self, payload: kserve.InferRequest, *_: Any, **__: Any) -> kserve.InferResponse:
        """Answer one request; a plain function runs in a thread."""
        texts = [text if isinstance(text, str) else text.decode() for text in payload.inputs[0].as_numpy().ravel()]
        output = kserve.InferOutput("EMBEDDING", [len(texts), 384], "FP32")
        output.set_data_from_numpy(self._embed(texts), binary_data=False)
        return kserve.InferResponse(payload.id, "rival", [output])


if __name__ == "__main__":
    model = EmbeddingModel(Path(sys.argv[1]))
    kserve.ModelServer(http_port=int(sys.argv[2]), enable_grpc=False, access_log_format=None).start([model])
