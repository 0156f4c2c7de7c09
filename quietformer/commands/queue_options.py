"""Options of a model's queue that ``serve`` and ``triton-repo`` share, and their defaults."""

from __future__ import annotations

from typing import Annotated

import typer

ModelName = Annotated[str | None, typer.Option("--name", help="Name of the model; of the folder or file by default.")]
MaxBatchSize = Annotated[int, typer.Option("--max-batch-size", help="Rows of one run.", min=1)]
MaxQueueSize = Annotated[int, typer.Option("--max-queue-size", help="Waiting requests; more get 503.", min=1)]
QueueTimeout = Annotated[float, typer.Option("--queue-timeout", help="Seconds to wait; then 503.", min=0.001)]
QueueDelay = Annotated[
    float, typer.Option("--queue-delay", help="Seconds that an idle model waits for a fuller batch.", min=0)
]
MAX_BATCH_SIZE, MAX_QUEUE_SIZE, QUEUE_TIMEOUT, QUEUE_DELAY = 16, 256, 10.0, 0.0
