"""Times of an engine's queries, taken by the device: the fields that trtexec prints.

    enqueue   host time of the call that puts the engine, or its CUDA graph, on the stream
    H2D       inputs to the device     compute   the engine     D2H   outputs to the host
    latency   H2D + compute + D2H
    host      wall time of the whole query on the host, with staging and waiting; of a single query only

As in trtexec a CUDA graph holds the engine alone, and the copies stay outside, so that they can be told apart.
Unverified: no GPU was at hand; tested on a stand-in of the driver whose clock is a list of costs.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from types import TracebackType
from typing import Self

from deploy.backends.cuda_stream import CudaStream

IN_FLIGHT = 64
"""Queries that are put on the stream before it is waited for, back to back."""
_MARKS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class QueryTimes:
    """One query, in ms."""

    enqueue: float
    h2d: float
    compute: float
    d2h: float
    host: float | None
    """None where queries were not waited for one by one."""

    @property
    def latency(self) -> float:
        """What trtexec calls latency."""
        return self.h2d + self.compute + self.d2h


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """A stretch of queries of one engine."""

    queries: tuple[QueryTimes, ...]
    walltime_ms: float
    """Host time from the first call to the last answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """The parts of a query; each puts something on the stream and returns."""

    fill: Callable[[], None]
    """Writes inputs into pinned memory; needed before each query that is waited for."""
    copy_in: Callable[[], None]
    execute: Callable[[], None]
    copy_out: Callable[[], None]
    release: Callable[[], None]
    """Gives back what was made for the timing."""


class EngineTimer:
    """Queries of one opened engine with fixed feeds. A context manager; valid until the engine is used with other shapes."""

    def __init__(self, stream: CudaStream, work: Work, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._stream, self._work, self._clock = stream, work, clock
        self._marks = [[stream.event() for _ in range(_MARKS)] for _ in range(IN_FLIGHT)]

    def per_request(self, seconds: float) -> Turn:
        """One query after another, each waited for, until ``seconds`` are over; at least one."""
        self._stream.use_here()
        queries: list[QueryTimes] = []
        started = self._clock()
        while not queries or self._clock() - started < seconds:
            before = self._clock()
            self._work.fill()
            enqueue = self._enqueue(self._marks[0])
            self._stream.wait()
            host = (self._clock() - before) * 1000.0
            queries.append(self._times(self._marks[0], enqueue=enqueue, host=host))
        return Turn(queries=tuple(queries), walltime_ms=(self._clock() - started) * 1000.0)

    def back_to_back(self, seconds: float) -> Turn:
        """Queries put on the stream ``IN_FLIGHT`` at a time without waiting, until ``seconds`` are over."""
        self._stream.use_here()
        queries: list[QueryTimes] = []
        walltime = 0.0
        started = self._clock()
        while not queries or self._clock() - started < seconds:
            before = self._clock()
            enqueues = [self._enqueue(marks) for marks in self._marks]
            self._stream.wait()
            walltime += (self._clock() - before) * 1000.0
            queries += [
                self._times(marks, enqueue=enqueue, host=None)
                for marks, enqueue in zip(self._marks, enqueues, strict=True)
            ]
        return Turn(queries=tuple(queries), walltime_ms=walltime)

    def close(self) -> None:
        """Give events and graph back."""
        for marks in self._marks:
            for mark in marks:
                self._stream.drop_event(mark)
        self._marks = []
        self._work.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _enqueue(self, marks: list[ctypes.c_void_p]) -> float:
        """Put one query on the stream; ms that the engine's own call took."""
        self._stream.record(marks[0])
        self._work.copy_in()
        self._stream.record(marks[1])
        before = self._clock()
        self._work.execute()
        enqueue = (self._clock() - before) * 1000.0
        self._stream.record(marks[2])
        self._work.copy_out()
        self._stream.record(marks[3])
        return enqueue

    def _times(self, marks: list[ctypes.c_void_p], *, enqueue: float, host: float | None) -> QueryTimes:
        h2d, compute, d2h = (self._stream.milliseconds(start, end) for start, end in pairwise(marks))
        return QueryTimes(enqueue=enqueue, h2d=h2d, compute=compute, d2h=d2h, host=host)
