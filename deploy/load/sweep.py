"""Load at several strengths, one after another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from deploy.load.client import LoadClient, ModelFacts
from deploy.load.loops import LoadPoint, closed_loop, open_loop
from deploy.load.requests import LoadRequests


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepSettings:
    """What to ask, and how hard."""

    url: str
    model: str | None = None
    clients: tuple[int, ...] = (1, 4, 16)
    """Of closed loops; one measurement each."""
    rates: tuple[float, ...] = ()
    """Of open loops, requests a second; one measurement each, after the closed ones."""
    seconds: float = 5.0
    warm_up: float = 1.0
    """Seconds before every measurement that are not counted."""
    timeout: float = 30.0
    token: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not (self.clients or self.rates):
            raise ValueError("nothing to measure; expected numbers of clients or rates")
        if any(number < 1 for number in self.clients) or any(rate <= 0 for rate in self.rates):
            raise ValueError("numbers of clients and rates must be positive")
        if self.seconds <= 0 or self.warm_up < 0 or self.timeout <= 0:
            raise ValueError("seconds and timeout must be positive, warm-up 0 or more")


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """What came of it."""

    model: ModelFacts
    requests: LoadRequests
    points: tuple[LoadPoint, ...]


def run_sweep(
    settings: SweepSettings,
    requests_for: Callable[[ModelFacts], LoadRequests],
    *,
    tell: Callable[[int, int, str], None],
) -> Sweep:
    """Ask the model what it takes, then load it.

    Args:
        settings: what to ask, and how hard.
        requests_for: makes the requests for a model.
        tell: takes measurements done, measurements in all, and what is next.

    Raises:
        ValueError: no server, no such model, or requests that cannot be made.
    """
    return asyncio.run(_sweep(settings, requests_for, tell))


async def _sweep(
    settings: SweepSettings,
    requests_for: Callable[[ModelFacts], LoadRequests],
    tell: Callable[[int, int, str], None],
) -> Sweep:
    connections = max([*settings.clients, 256 if settings.rates else 1])
    async with LoadClient(
        settings.url, timeout=settings.timeout, connections=connections, token=settings.token
    ) as client:
        model = await client.facts(settings.model)
        requests = requests_for(model)
        prepared: list[Any] = [client.prepare(arrays) for arrays in requests.arrays]

        async def ask(number: int) -> str | None:
            return await client.ask(model.name, prepared[number % len(prepared)])

        points: list[LoadPoint] = []
        total = len(settings.clients) + len(settings.rates)
        for clients in settings.clients:
            tell(len(points), total, f"{clients} clients")
            if settings.warm_up:
                await closed_loop(ask, clients=clients, seconds=settings.warm_up, rows=requests.rows)
            points.append(await closed_loop(ask, clients=clients, seconds=settings.seconds, rows=requests.rows))
        for rate in settings.rates:
            tell(len(points), total, f"{rate:g} requests/s")
            points.append(
                await open_loop(ask, rate=rate, seconds=settings.seconds, rows=requests.rows, seed=settings.seed)
            )
        tell(total, total, "done")
    return Sweep(model=model, requests=requests, points=tuple(points))
