"""The kserve SDK's model server: ``python serve_kserve.py GRAPH PORT``.

It forms no batches: KServe's batcher is another process of the cluster (the agent in front of the model's container).
"""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from embedder import Embedder
from kserve import InferOutput, InferRequest, InferResponse, Model, ModelServer


class EmbeddingModel(Model):
    """Texts in, embeddings out; one run at a time, in a thread, so that the event loop goes on."""

    def __init__(self, name: str, graph: Path) -> None:
        super().__init__(name)
        self._embed = Embedder(graph)
        self._thread = ThreadPoolExecutor(1)
        self.ready = True

    async def predict(self, payload: InferRequest, headers: Any = None, response_headers: Any = None) -> InferResponse:
        """Answer a request."""
        texts = [text if isinstance(text, str) else text.decode() for text in payload.inputs[0].data]
        vectors = await asyncio.get_running_loop().run_in_executor(self._thread, self._embed, texts)
        output = InferOutput("EMBEDDING", list(vectors.shape), "FP32")
        output.set_data_from_numpy(vectors, binary_data=False)
        return InferResponse(response_id=payload.id or "", model_name=self.name, infer_outputs=[output])


if __name__ == "__main__":
    server = ModelServer(http_port=int(sys.argv[2]), enable_grpc=False, access_log_format=None, workers=1)
    server.start([EmbeddingModel("rival", Path(sys.argv[1]))])
