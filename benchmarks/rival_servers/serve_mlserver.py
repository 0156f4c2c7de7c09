"""MLServer with adaptive batching: ``python serve_mlserver.py GRAPH PORT``.

In one process: its workers would be a further copy of the session, and what they compute passes through a queue between processes.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from embedder import MAX_BATCH, MAX_WAIT, Embedder
from mlserver import MLModel, MLServer, ModelSettings, Settings
from mlserver.codecs import NumpyCodec, StringCodec
from mlserver.settings import ModelParameters
from mlserver.types import InferenceRequest, InferenceResponse


class EmbeddingRuntime(MLModel):
    """Texts in, embeddings out."""

    async def load(self) -> bool:
        """Open the graph."""
        self._embed = Embedder(Path(str(self.settings.parameters.uri)))
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Answer a batch."""
        vectors = await asyncio.to_thread(self._embed, StringCodec.decode_input(payload.inputs[0]))
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("EMBEDDING", vectors)])


async def main() -> None:
    """Serve."""
    port = int(sys.argv[2])
    settings = Settings(
        host="127.0.0.1", http_port=port, grpc_port=port + 1, metrics_port=port + 2, debug=False,
        access_log=False, parallel_workers=0, use_structured_logging=False,
    )  # fmt: skip
    model = ModelSettings(
        name="rival", implementation=EmbeddingRuntime, max_batch_size=MAX_BATCH, max_batch_time=MAX_WAIT,
        parameters=ModelParameters(uri=sys.argv[1]),
    )  # fmt: skip
    server = MLServer(settings)
    await server.start([model])


if __name__ == "__main__":
    asyncio.run(main())
