"""Closed loop (so many clients, each waits for its answer) and open loop (so many requests a second, whatever happens)."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from deploy.measuring.latency_statistics import LatencySummary, summarize

Ask = Callable[[int], Awaitable[str | None]]
"""Sends the request of a number; the kind of its error, or None."""
MAX_OPEN = 10_000
"""Requests of an open loop that may wait for an answer at once; more are counted as not sent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadPoint:
    """What came of one stretch of load."""

    clients: int | None
    """Of a closed loop."""
    rate: float | None
    """Requests a second that an open loop sent."""
    seconds: float
    rows: int
    """Of each request."""
    answered: int
    errors: dict[str, int]
    """By kind, the most frequent first."""
    latency: LatencySummary | None
    """Of answered requests, in ms; in an open loop from when a request was due. None where none was answered."""

    @property
    def requests_per_second(self) -> float:
        """Answered ones."""
        return self.answered / self.seconds

    @property
    def rows_per_second(self) -> float:
        """Of answered requests."""
        return self.requests_per_second * self.rows


class _Tally:
    def __init__(self) -> None:
        self.latencies: list[float] = []
        self.errors: Counter[str] = Counter()

    async def measure(self, ask: Ask, number: int, due: float) -> bool:
        """Whether the request was answered."""
        kind = await ask(number)
        if kind is None:
            self.latencies.append((time.perf_counter() - due) * 1e3)
        else:
            self.errors[kind] += 1
        return kind is None

    def point(self, *, clients: int | None, rate: float | None, seconds: float, rows: int) -> LoadPoint:
        return LoadPoint(
            clients=clients,
            rate=rate,
            seconds=seconds,
            rows=rows,
            answered=len(self.latencies),
            errors=dict(self.errors.most_common()),
            latency=summarize(self.latencies) if self.latencies else None,
        )


async def closed_loop(ask: Ask, *, clients: int, seconds: float, rows: int) -> LoadPoint:
    """Every client sends its next request when the last one is answered.

    Args:
        ask: sends a request.
        clients: at the same time.
        seconds: to go on for; what is under way then is still counted, and so is its time.
        rows: of each request.
    """
    tally = _Tally()
    numbers = itertools.count()
    started = time.perf_counter()

    async def client() -> None:
        while (due := time.perf_counter()) < started + seconds:
            if not await tally.measure(ask, next(numbers), due):
                await asyncio.sleep(0.01)  # a server that refuses at once is not to be flooded

    await asyncio.gather(*(client() for _ in range(clients)))
    return tally.point(clients=clients, rate=None, seconds=time.perf_counter() - started, rows=rows)


async def open_loop(ask: Ask, *, rate: float, seconds: float, rows: int, seed: int) -> LoadPoint:
    """Requests come at random moments (exponential gaps), as from many independent people.

    Latency counts from the moment at which a request was due, so that a server that falls behind is not flattered.

    Args:
        ask: sends a request.
        rate: requests a second on average.
        seconds: to go on for; answers are waited for afterwards.
        rows: of each request.
        seed: of the moments.
    """
    tally = _Tally()
    generator = random.Random(seed)
    pending: set[asyncio.Task[bool]] = set()
    started = time.perf_counter()
    due = started
    for number in itertools.count():
        due += generator.expovariate(rate)
        if due >= started + seconds:
            break
        if (wait := due - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        if len(pending) >= MAX_OPEN:
            tally.errors[f"not sent: {MAX_OPEN} requests wait for an answer"] += 1
            continue
        task = asyncio.create_task(tally.measure(ask, number, due))
        pending.add(task)
        task.add_done_callback(pending.discard)
    while pending:
        await asyncio.wait(pending)
    return tally.point(clients=None, rate=rate, seconds=max(seconds, time.perf_counter() - started), rows=rows)
