"""Requests that wait for a run: bounded in number and in time, left by those whose client is gone."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

import numpy as np

from deploy.backends.base import Feeds
from deploy.serving.faults import Fault, RequestFaultError
from deploy.serving.inference_statistics import InferenceStatistics, Stages


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    """A request's share of a run."""

    outputs: dict[str, np.ndarray]
    queue_ns: int
    stages: Stages


@dataclass(eq=False, kw_only=True, slots=True)
class Waiting:
    """A request, and the answer that it waits for."""

    inputs: Feeds
    rows: int
    kind: Hashable
    length: int | None
    arrived_ns: int
    answer: asyncio.Future[Ran]
    timer: asyncio.TimerHandle
    queued: bool = True


class BatchQueue:
    """The queue of one model; used in the event loop alone.

    Args:
        max_rows: of one run.
        max_size: requests that may wait.
        statistics: counts those that wait.
    """

    def __init__(self, *, max_rows: int, max_size: int, statistics: InferenceStatistics) -> None:
        self._max_rows = max_rows
        self._max_size = max_size
        self._statistics = statistics
        self._queue: deque[Waiting] = deque()
        self._arrival = asyncio.Event()

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Waiting]:
        return iter(tuple(self._queue))

    @property
    def rows(self) -> int:
        """Of all that waits."""
        return sum(waiting.rows for waiting in self._queue)

    @property
    def is_batch_full(self) -> bool:
        """Whether waiting longer would not add to the next run."""
        first = self._queue[0] if self._queue else None
        same = (waiting.rows for waiting in self._queue if first is not None and waiting.kind == first.kind)
        return sum(same) >= self._max_rows

    def put(self, inputs: Feeds, *, rows: int, kind: Hashable, length: int | None, seconds: float) -> Waiting:
        """Queue a request.

        Args:
            inputs: tensors, rows on axis 0.
            rows: how many.
            kind: only requests of one kind share a run.
            length: to pad axis 1 to.
            seconds: that it may wait; then its answer is a refusal.

        Raises:
            RequestFaultError: the queue is full.
        """
        if len(self._queue) >= self._max_size:
            raise RequestFaultError(Fault.UNAVAILABLE, f"exceeds maximum queue size of {self._max_size} requests")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Ran] = loop.create_future()
        waiting = Waiting(
            inputs=inputs, rows=rows, kind=kind, length=length, arrived_ns=time.perf_counter_ns(), answer=answer,
            timer=loop.call_later(seconds, _expire, answer),
        )  # fmt: skip
        self._queue.append(waiting)
        self._statistics.pending += 1
        answer.add_done_callback(lambda _: self._forget(waiting))
        self._arrival.set()
        return waiting

    def take(self) -> list[Waiting]:
        """The first request and those of its kind behind it, as many as fit into a run."""
        batch: list[Waiting] = []
        passed: list[Waiting] = []
        rows = 0
        while self._queue and rows < self._max_rows:
            waiting = self._queue.popleft()
            if waiting.answer.done():
                self._leave(waiting)
            elif batch and (waiting.kind != batch[0].kind or rows + waiting.rows > self._max_rows):
                passed.append(waiting)
            else:
                waiting.timer.cancel()
                self._leave(waiting)
                batch.append(waiting)
                rows += waiting.rows
        self._queue.extendleft(reversed(passed))
        return batch

    async def arrival(self) -> None:
        """Wait until something waits."""
        while not self._queue:
            self._arrival.clear()
            await self._arrival.wait()

    async def wait(self, until_ns: int, enough: Callable[[], bool]) -> None:
        """Wait until there is enough, or the time (``perf_counter_ns``) has come."""
        while not enough() and (left := until_ns - time.perf_counter_ns()) > 0:
            self._arrival.clear()
            try:
                async with asyncio.timeout(left / 1e9):
                    await self._arrival.wait()
            except TimeoutError:
                return

    def _forget(self, waiting: Waiting) -> None:
        """Take a request that was refused or given up while it waited out of the queue."""
        waiting.timer.cancel()
        if waiting.queued:
            self._leave(waiting)
            self._queue.remove(waiting)

    def _leave(self, waiting: Waiting) -> None:
        waiting.queued = False
        self._statistics.pending -= 1


def _expire(answer: asyncio.Future[Ran]) -> None:
    if not answer.done():
        answer.set_exception(RequestFaultError(Fault.UNAVAILABLE, "request timeout expired in the queue"))
