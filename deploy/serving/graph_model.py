"""A graph or engine behind the server: tensors in, tensors out."""

from __future__ import annotations

import asyncio
import itertools
import time

import numpy as np

from deploy.backends.base import IDS_NAME, Backend, Feeds
from deploy.backends.opening import open_backend
from deploy.serving.artifact_choice import ServedArtifact
from deploy.serving.batch_assembly import padded_length
from deploy.serving.batch_queue import Ran
from deploy.serving.batcher import Batcher, BatchingSettings
from deploy.serving.faults import RequestFaultError, invalid
from deploy.serving.inference_messages import InferAnswer, InferRequest
from deploy.serving.inference_statistics import InferenceStatistics
from deploy.serving.model_signature import ProbedGraph, probe, probe_feeds
from deploy.serving.request_checks import check_request, check_values

_WARM_UP_LENGTHS = (16, 32, 64, 128)
"""Tokens of the rows that a graph of free length is warmed up with."""


class OpenedGraph:
    """Backends of one artifact, probed and warmed up; made in a thread, for it may take seconds.

    Args:
        artifact: what to open.
        instances: how many; each takes one batch at a time.
        threads: of each; None lets the runtime choose.
        max_batch_size: rows of one run.

    Raises:
        ValueError: the artifact cannot be served; says why.
        FileNotFoundError: a file of it is missing.
        ImportError: its runtime is not installed.
    """

    def __init__(self, artifact: ServedArtifact, *, instances: int, threads: int | None, max_batch_size: int) -> None:
        self.artifact = artifact
        self.backends: list[Backend] = []
        try:
            for _ in range(instances):
                self.backends.append(open_backend(artifact.backend, artifact.path, threads=threads))
            self.info = self.backends[0].info
            positions = None if self.info is None else self.info.max_length
            self.max_length = min((bound for bound in (positions, artifact.max_length) if bound), default=None)
            batch = min(max_batch_size, artifact.max_batch_size or max_batch_size)
            self.probed: ProbedGraph = probe(self.backends[0], max_batch_size=batch, max_length=self.max_length)
            self._warm_up()
        except BaseException:
            self.close()
            raise

    def _warm_up(self) -> None:
        """Run every instance at the sizes that requests will have, so that the first of them do not wait."""
        batches = {1, max(1, self.probed.signature.max_batch_size)}
        sizes = {8}
        if self.probed.pads_length:
            sizes = {min(length, self.max_length or length) for length in _WARM_UP_LENGTHS}
        for backend in self.backends:
            head = next(iter(backend.input_shapes.values()))[:1]
            name = head[0] if head and isinstance(head[0], str) else None
            for size, batch in itertools.product(sorted(sizes), sorted(batches)):
                backend.infer(probe_feeds(backend, batch=batch, batch_name=name, size=size))

    def close(self) -> None:
        """Free the backends."""
        for backend in self.backends:
            backend.close()


class GraphModel:
    """A graph with its queue; made in the event loop.

    Args:
        graph: opened.
        name: as clients call it.
        version: as clients call it.
        batching: bounds of the queue; its ``max_rows`` is the graph's own.
    """

    def __init__(self, graph: OpenedGraph, *, name: str, version: str, batching: BatchingSettings) -> None:
        self.name, self.version = name, version
        self.signature = graph.probed.signature
        self.statistics = InferenceStatistics()
        first = graph.backends[0]
        self.platform = f"quietformer_{first.name.replace('-', '_')}"
        self.facts = {"artifact": graph.artifact.path.name, **first.describe()}
        self._graph = graph
        self._batcher = Batcher(
            [backend.infer for backend in graph.backends],
            settings=batching,
            fills={} if graph.info is None else {IDS_NAME: graph.info.pad_token_id},
            length_axes=graph.probed.length_axes,
            statistics=self.statistics,
        )

    @property
    def input_types(self) -> dict[str, np.dtype]:
        """Element type of each input of the graph."""
        return self._graph.backends[0].input_types

    @property
    def input_names(self) -> tuple[str, ...]:
        """Inputs of the graph, in order."""
        return self._graph.backends[0].input_names

    async def infer(self, request: InferRequest) -> InferAnswer:
        """See :meth:`deploy.serving.served_model.ServedModel.infer`."""
        start = time.perf_counter_ns()
        try:
            rows = check_request(request, self.signature, self.name)
            ran = await self.run(request.inputs, rows=rows, timeout=request.timeout)
        except RequestFaultError as error:
            self.statistics.refused(error.fault.reason, time.perf_counter_ns() - start)
            raise
        except asyncio.CancelledError:
            self.statistics.refused("CANCELED", time.perf_counter_ns() - start)
            raise
        total = time.perf_counter_ns() - start
        self.statistics.answered(rows=rows, total_ns=total, queue_ns=ran.queue_ns, stages=ran.stages)
        return InferAnswer(
            model=self.name,
            version=self.version,
            id=request.id,
            outputs=ran.outputs,
            wanted=request.wanted(self.signature.output_names),
        )

    async def run(self, inputs: Feeds, *, rows: int, timeout: float | None) -> Ran:
        """Rows through the queue, their values checked first.

        Raises:
            RequestFaultError: values that the model does not take, a full queue, a wait too long, or a failed run.
        """
        check_values(inputs, self._graph.backends[0].input_shapes, self._graph.info)
        if self._graph.probed.pads_length:
            length = self._padded(inputs[IDS_NAME].shape[1])
            return await self._batcher.submit(inputs, rows=rows, kind=length, length=length, timeout=timeout)
        # Without a batch axis nothing can be joined: every request is of a kind of its own.
        kind = _tails(inputs) if self.signature.max_batch_size else object()
        return await self._batcher.submit(inputs, rows=rows, kind=kind, length=None, timeout=timeout)

    def _padded(self, length: int) -> int:
        longest = self._graph.max_length
        if longest is not None and length > longest:
            raise invalid(f"length {length} is above the {longest} tokens that the model takes")
        return padded_length(length, longest)

    async def close(self) -> None:
        """Stop the queue and free the backends."""
        await self._batcher.close()
        self._graph.close()


def _tails(inputs: Feeds) -> tuple[tuple[int, ...], ...]:
    return tuple(array.shape[1:] for array in inputs.values())
