"""``quietformer serve``: a graph or engine behind KServe v2, the protocol of Triton."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quietformer import __version__
from quietformer.commands.queue_options import (
    MAX_BATCH_SIZE,
    MAX_QUEUE_SIZE,
    QUEUE_DELAY,
    QUEUE_TIMEOUT,
    MaxBatchSize,
    MaxQueueSize,
    ModelName,
    QueueDelay,
    QueueTimeout,
)


def serve(
    artifact: Annotated[
        Path, typer.Argument(metavar="RUN|BUNDLE|MODEL.onnx|ENGINE", help="Folder of a run or engine, or a graph.")
    ],
    *,
    name: ModelName = None,
    backend: Annotated[
        str | None,
        typer.Option(
            "--backend",
            help="openvino, onnxruntime, onnxruntime-cuda; by default the first, for integers on x86 without VNNI the second.",
        ),
    ] = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on; others can reach 0.0.0.0.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Of HTTP; 0 takes a free one.")] = 8000,
    grpc_port: Annotated[int | None, typer.Option("--grpc-port", help="Also serve gRPC here.")] = None,
    max_batch_size: MaxBatchSize = MAX_BATCH_SIZE,
    max_queue_size: MaxQueueSize = MAX_QUEUE_SIZE,
    queue_timeout: QueueTimeout = QUEUE_TIMEOUT,
    queue_delay: QueueDelay = QUEUE_DELAY,
    instances: Annotated[int, typer.Option("--instances", help="Copies that run at the same time.", min=1)] = 1,
    threads: Annotated[int | None, typer.Option("--threads", help="Of each copy; all cores by default.", min=1)] = None,
    max_body: Annotated[int, typer.Option("--max-body", help="Largest request in MiB.", min=1)] = 64,
    drain: Annotated[float, typer.Option("--drain", help="Seconds to serve on after SIGTERM at most.", min=0)] = 30.0,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", metavar="FILE", help="Requests must carry the token in this file.")
    ] = None,
    allow_model_control: Annotated[
        bool, typer.Option("--allow-model-control", help="Clients may load and unload models.")
    ] = False,
    access_log: Annotated[bool, typer.Option("--access-log", help="One line on stderr per request.")] = False,
) -> None:
    """Serve a model over HTTP (and gRPC) as Triton does: KServe v2, dynamic batching, metrics.

    A second model, NAME-text, takes texts where the graph's tokenizer lies beside it. SIGHUP loads a changed artifact
    again without dropping a request; SIGTERM drains.

    Example: quietformer serve runs/minilm --port 8000
    """
    import logging
    import sys

    from deploy.serving.artifact_choice import served_name
    from deploy.serving.batcher import BatchingSettings
    from deploy.serving.loading import ModelSettings
    from deploy.serving.server_process import run_server
    from deploy.serving.server_settings import ServerSettings, read_token
    from quietformer.progress import say

    logging.basicConfig(level=logging.INFO if access_log else logging.WARNING, stream=sys.stderr, format="%(message)s")
    token = None if token_file is None else read_token(token_file)
    if token is None and host not in ("127.0.0.1", "::1", "localhost"):
        say(f"anyone who can reach {host} can use this server; --token-file asks for a token")
    batching = BatchingSettings(
        max_rows=max_batch_size, max_queue_size=max_queue_size, queue_timeout=queue_timeout, queue_delay=queue_delay
    )
    model = ModelSettings(
        path=artifact,
        name=name or served_name(artifact),
        backend=backend,
        instances=instances,
        threads=threads,
        batching=batching,
    )
    settings = ServerSettings(
        host=host,
        http_port=port,
        grpc_port=grpc_port,
        max_body_bytes=max_body << 20,
        drain_timeout=drain,
        token=token,
        allow_model_control=allow_model_control,
        access_log=access_log,
    )
    run_server(model, settings, version=__version__, tell=say)
