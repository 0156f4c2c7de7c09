"""Dynamic batching: requests that arrive while the model is busy run together next.

A request that finds the model idle starts at once. A model that has just run waits up to a twentieth of that run's time
for those whom it answered, so that they share the next run with those who waited. The queue is bounded, waiting in it is
bounded, and a batch that fails is run again request by request, so that only the one at fault fails.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from deploy.backends.base import Feeds
from deploy.serving.batch_assembly import join, split
from deploy.serving.batch_queue import BatchQueue, Ran, Waiting
from deploy.serving.faults import Fault, RequestFaultError
from deploy.serving.inference_statistics import InferenceStatistics, Stages
from deploy.tasks.task import Infer

_log = logging.getLogger(__name__)

SETTLING = 0.05
"""Of a run's time: how long the next one waits at most for requests of those whom it answered."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchingSettings:
    """How requests wait and share runs."""

    max_rows: int
    """Rows of one run."""
    max_queue_size: int = 256
    """Requests that may wait; more are refused."""
    queue_timeout: float = 10.0
    """Seconds that a request may wait before it is refused."""
    queue_delay: float = 0.0
    """Seconds that an idle model waits for a batch to fill; 0 starts at once."""


class Batcher:
    """The queue of one model and the threads that run it.

    Args:
        instances: each runs one batch at a time, in a thread of its own.
        settings: bounds.
        fills: what padding holds, by input.
        length_axes: outputs that are cut back to a request's own length, and the axis where.
        statistics: counts runs and waiting requests.
    """

    def __init__(
        self,
        instances: Sequence[Infer],
        *,
        settings: BatchingSettings,
        fills: Mapping[str, int],
        length_axes: Mapping[str, int],
        statistics: InferenceStatistics,
    ) -> None:
        self._settings = settings
        self._fills = fills
        self._length_axes = length_axes
        self._statistics = statistics
        self._queue = BatchQueue(max_rows=settings.max_rows, max_size=settings.max_queue_size, statistics=statistics)
        self._threads = ThreadPoolExecutor(len(instances), thread_name_prefix="inference")
        self._workers = [asyncio.create_task(self._work(instance)) for instance in instances]

    async def submit(
        self, inputs: Feeds, *, rows: int, kind: Hashable, length: int | None, timeout: float | None
    ) -> Ran:
        """Wait for a run.

        Args:
            inputs: tensors, rows on axis 0.
            rows: how many.
            kind: only requests of one kind share a run.
            length: pad axis 1 to so many tokens; None where nothing is padded.
            timeout: seconds to wait in the queue, where that is less than the server's bound.

        Cancelled while it waits, it leaves the queue and is never run.

        Raises:
            RequestFaultError: the queue is full, waiting took too long, or the run failed.
        """
        allowed = self._settings.queue_timeout if timeout is None else min(timeout, self._settings.queue_timeout)
        return await self._queue.put(inputs, rows=rows, kind=kind, length=length, seconds=allowed).answer

    async def _work(self, instance: Infer) -> None:
        loop = asyncio.get_running_loop()
        settled_ns = expected = 0
        while True:
            await self._settle(settled_ns, expected)
            await self._queue.arrival()
            if self._settings.queue_delay:
                await self._fill()
            if not (batch := self._queue.take()):
                continue
            taken_ns = time.perf_counter_ns()
            try:
                shares, stages = await loop.run_in_executor(self._threads, self._run, instance, batch)
            except Exception as error:
                await self._run_singly(instance, batch, error)
                continue
            self._deliver(batch, shares, stages, taken_ns)
            ended_ns = time.perf_counter_ns()
            settled_ns = ended_ns + int(SETTLING * (ended_ns - taken_ns))
            expected = self._queue.rows + sum(waiting.rows for waiting in batch)

    async def _settle(self, until_ns: int, expected: int) -> None:
        """Let those who were just answered, and ask again, join those who waited meanwhile.

        Without it clients fall into two groups that never meet, of 15 and 1 as easily as of 8 and 8, each waiting for the
        other's run.
        """
        await self._queue.wait(until_ns, lambda: self._queue.is_batch_full or self._queue.rows >= expected)

    async def _fill(self) -> None:
        """Wait for more requests until the batch is full or the first one has waited for the delay."""
        first = next(iter(self._queue))
        until_ns = first.arrived_ns + int(self._settings.queue_delay * 1e9)
        await self._queue.wait(until_ns, lambda: not self._queue or self._queue.is_batch_full)

    def _run(self, instance: Infer, batch: Sequence[Waiting]) -> tuple[list[dict[str, np.ndarray]], Stages]:
        """In a thread of the pool."""
        start = time.perf_counter_ns()
        length = batch[0].length
        feeds = join([waiting.inputs for waiting in batch], length=length, fills=self._fills)
        joined = time.perf_counter_ns()
        outputs = instance(feeds)
        ran = time.perf_counter_ns()
        lengths = None if length is None else [_length(waiting.inputs) for waiting in batch]
        shares = split(outputs, [waiting.rows for waiting in batch], lengths, self._length_axes)
        done = time.perf_counter_ns()
        return shares, Stages(compute_input=joined - start, compute_infer=ran - joined, compute_output=done - ran)

    async def _run_singly(self, instance: Infer, batch: Sequence[Waiting], error: Exception) -> None:
        if len(batch) == 1:
            _log.error("a run failed", exc_info=error)
            if not batch[0].answer.done():
                fault = RequestFaultError(Fault.INTERNAL, f"the model failed: {_first_line(error)}")
                batch[0].answer.set_exception(fault)
            return
        _log.warning("a batch of %d requests failed; each is run alone: %s", len(batch), _first_line(error))
        for waiting in batch:
            if waiting.answer.done():  # the client went in the meantime
                continue
            taken_ns = time.perf_counter_ns()
            try:
                shares, stages = await asyncio.get_running_loop().run_in_executor(
                    self._threads, self._run, instance, [waiting]
                )
            except Exception as own_error:
                await self._run_singly(instance, [waiting], own_error)
            else:
                self._deliver([waiting], shares, stages, taken_ns)

    def _deliver(
        self, batch: Sequence[Waiting], shares: list[dict[str, np.ndarray]], stages: Stages, taken_ns: int
    ) -> None:
        self._statistics.ran(sum(waiting.rows for waiting in batch), stages)
        for waiting, outputs in zip(batch, shares, strict=True):
            if not waiting.answer.done():  # the client may be gone
                ran = Ran(outputs=outputs, queue_ns=taken_ns - waiting.arrived_ns, stages=stages)
                waiting.answer.set_result(ran)

    async def close(self) -> None:
        """Stop the workers; what still waits is refused."""
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        for waiting in self._queue:
            if not waiting.answer.done():
                waiting.answer.set_exception(RequestFaultError(Fault.UNAVAILABLE, "the model is being unloaded"))
        await asyncio.get_running_loop().run_in_executor(None, self._threads.shutdown)


def _length(inputs: Feeds) -> int:
    return int(next(iter(inputs.values())).shape[1])


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
