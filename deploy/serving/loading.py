"""From an artifact to the models that serve it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy.data.encoding import TextEncoder
from deploy.serving.artifact_choice import ServedArtifact, check_name, choose_artifact
from deploy.serving.batcher import BatchingSettings
from deploy.serving.graph_model import GraphModel, OpenedGraph
from deploy.serving.served_model import ServedModel
from deploy.serving.text_model import TextModel, why_no_texts

TEXT_SUFFIX = "-text"


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSettings:
    """What is served, and how it runs."""

    path: Path
    name: str
    backend: str | None = None
    """None chooses, see :func:`deploy.serving.artifact_choice.choose_artifact`."""
    instances: int = 1
    """Copies that run at the same time."""
    threads: int | None = None
    """Of each instance; None lets the runtime choose."""
    batching: BatchingSettings

    def __post_init__(self) -> None:
        check_name(self.name)


class Generation:
    """One loaded version: its models, and how many requests are in them."""

    def __init__(self, models: Mapping[str, ServedModel], graph: GraphModel, *, sha256: str, notes: list[str]) -> None:
        self.models = dict(models)
        self.version = graph.version
        self.sha256 = sha256
        self.notes = notes
        """What a person should know of it."""
        self._graph = graph
        self._in_use = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def enter(self) -> None:
        """A request begins."""
        self._in_use += 1
        self._idle.clear()

    def leave(self) -> None:
        """A request is answered."""
        self._in_use -= 1
        if not self._in_use:
            self._idle.set()

    async def retire(self) -> None:
        """Free everything once the last request is answered."""
        await self._idle.wait()
        await self._graph.close()


async def find_artifact(settings: ModelSettings) -> ServedArtifact:
    """What lies at the path now, hashed.

    Raises:
        ValueError: not something that the backend runs.
        FileNotFoundError: nothing to serve there.
    """
    return await asyncio.get_running_loop().run_in_executor(None, choose_artifact, settings.path, settings.backend)


async def load_generation(settings: ModelSettings, artifact: ServedArtifact, version: str) -> Generation:
    """Open, warm up and name the models of an artifact; the event loop goes on meanwhile.

    Raises:
        ValueError: it cannot be served; says why.
        FileNotFoundError: it, or a part of it, is missing.
        ImportError: its runtime is not installed.
    """
    loop = asyncio.get_running_loop()
    opened, encoder, note = await loop.run_in_executor(None, _open, settings, artifact)
    graph = GraphModel(opened, name=settings.name, version=version, batching=settings.batching)
    models: dict[str, ServedModel] = {graph.name: graph}
    notes = [f"{settings.name}: {artifact.path} on {artifact.backend}, {opened.backends[0].precision}"]
    if encoder is not None and opened.info is not None:
        text = TextModel(graph, info=opened.info, encoder=encoder, name=settings.name + TEXT_SUFFIX)
        models[text.name] = text
    notes.append(f"{settings.name}{TEXT_SUFFIX}: {note}")
    return Generation(models, graph, sha256=artifact.sha256, notes=notes)


def _open(settings: ModelSettings, artifact: ServedArtifact) -> tuple[OpenedGraph, TextEncoder | None, str]:
    opened = OpenedGraph(
        artifact,
        instances=settings.instances,
        threads=settings.threads,
        max_batch_size=settings.batching.max_rows,
    )
    try:
        encoder, note = _text_encoder(opened)
    except BaseException:
        opened.close()
        raise
    return opened, encoder, note


def _text_encoder(opened: OpenedGraph) -> tuple[TextEncoder | None, str]:
    info, tokenizer = opened.info, opened.artifact.tokenizer
    reason = why_no_texts(info, opened.backends[0].input_names, has_tokenizer=tokenizer is not None)
    rows = {shape[0] for shape in opened.backends[0].input_shapes.values()}
    if reason is None and not opened.probed.signature.max_batch_size and rows != {1}:
        reason = f"a text is one row, and its inputs have {', '.join(map(str, sorted(rows, key=str)))}"
    if reason is not None or info is None or tokenizer is None:
        return None, f"not served, {reason}"
    longest = info.length or opened.max_length or info.max_length
    encoder = TextEncoder(tokenizer, max_length=longest, pad_token_id=info.pad_token_id)
    if info.tokenizer_sha256 and encoder.tokenizer_sha256 != info.tokenizer_sha256:
        raise ValueError(f"{tokenizer} is not the tokenizer that the graph was exported with; put that one beside it")
    what = "labels" if info.task == "text-classification" else "embeddings"
    return encoder, f"texts of at most {longest} tokens to {what}"
