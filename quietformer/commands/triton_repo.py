"""``quietformer triton-repo``: a model repository for Triton, from a run directory, a graph or engines."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

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


class Runtime(StrEnum):
    """What runs the model inside Triton."""

    ONNXRUNTIME = "onnxruntime"
    ONNXRUNTIME_CUDA = "onnxruntime-cuda"
    ONNXRUNTIME_TENSORRT = "onnxruntime-tensorrt"
    OPENVINO = "openvino"
    TENSORRT = "tensorrt"


def triton_repo(
    artifact: Annotated[
        Path, typer.Argument(metavar="RUN|BUNDLE|MODEL.onnx|ENGINE", help="Folder of a run or engine, or a graph.")
    ],
    *,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the repository.")],
    runtime: Annotated[
        Runtime, typer.Option("--runtime", help="The plan of an engine, or the graph in one of the others.")
    ] = Runtime.ONNXRUNTIME,
    name: ModelName = None,
    engine: Annotated[
        list[Path] | None, typer.Option("--engine", metavar="DIR", help="A further engine, for other GPUs; repeatable.")
    ] = None,
    graph: Annotated[
        Path | None, typer.Option("--graph", metavar="MODEL.onnx", help="Of the engines, where it is not beside them.")
    ] = None,
    max_batch_size: MaxBatchSize = MAX_BATCH_SIZE,
    preferred_batch_size: Annotated[
        list[int] | None, typer.Option("--preferred-batch-size", help="Run at once when so many wait; repeatable.")
    ] = None,
    queue_delay: QueueDelay = QUEUE_DELAY,
    queue_timeout: QueueTimeout = QUEUE_TIMEOUT,
    max_queue_size: MaxQueueSize = MAX_QUEUE_SIZE,
    instances: Annotated[
        int, typer.Option("--instances", help="Copies that run at the same time, on each GPU.", min=1)
    ] = 1,
    gpu: Annotated[list[int] | None, typer.Option("--gpu", help="Number of a GPU; all by default; repeatable.")] = None,
    threads: Annotated[int | None, typer.Option("--threads", help="Of each copy on a CPU.", min=1)] = None,
    model_version: Annotated[int, typer.Option("--model-version", help="Folder of the model.", min=1)] = 1,
    version_policy: Annotated[
        str, typer.Option("--version-policy", help="latest:N, all or specific:1,3.")
    ] = "latest:1",
    warm_up: Annotated[bool, typer.Option("--warm-up/--no-warm-up", help="Run zeros before ready.")] = True,
    response_cache: Annotated[
        bool, typer.Option("--response-cache", help="Same request, same answer, without a run.")
    ] = False,
    cuda_graphs: Annotated[bool, typer.Option("--cuda-graphs", help="Record CUDA graphs of the plan.")] = False,
    engine_cache: Annotated[
        str, typer.Option("--engine-cache", metavar="DIR", help="In the server, for --runtime onnxruntime-tensorrt.")
    ] = "/cache",
    texts: Annotated[bool, typer.Option("--texts/--no-texts", help="Add NAME-text with the tokenizer.")] = True,
    tritonserver: Annotated[
        Path | None, typer.Option("--tritonserver", metavar="BINARY", help="Also load it with this server.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier repository.")] = False,
) -> None:
    """Write a model repository that Triton serves as it is.

    Checked by the parser of Triton's protocol, by rules of its own, and with --tritonserver by loading it.
    NAME-text takes texts: the Python backend needs the package tokenizers for it.

    Example: quietformer triton-repo runs/minilm --out models --runtime onnxruntime
    """
    from functools import partial

    from deploy.serving.artifact_choice import served_name
    from deploy.triton.real_triton import check_by_loading
    from deploy.triton.repository_settings import RepositorySettings
    from deploy.triton.repository_writer import write_repository
    from deploy.triton.sources import find_sources
    from quietformer.progress import say

    settings = RepositorySettings(
        name=name or served_name(artifact),
        runtime=runtime.value,
        max_batch_size=max_batch_size,
        preferred_batch_sizes=tuple(preferred_batch_size or ()),
        queue_delay=queue_delay,
        queue_timeout=queue_timeout,
        max_queue_size=max_queue_size,
        instances=instances,
        gpus=tuple(gpu or ()),
        threads=threads,
        version=model_version,
        version_policy=version_policy,
        warm_up=warm_up,
        response_cache=response_cache,
        cuda_graphs=cuda_graphs,
        engine_cache=engine_cache,
        texts=texts,
    )
    source = find_sources(artifact, engines=engine or (), graph=graph, plan=runtime is Runtime.TENSORRT)
    last_check = None if tritonserver is None else partial(check_by_loading, tritonserver)
    written = write_repository(source, settings, out, force=force, last_check=last_check)
    for note in written.notes:
        say(note)
    typer.echo(f"{out}: {', '.join(written.models)}")
