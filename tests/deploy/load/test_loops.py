"""What the loops count, with requests whose duration is known."""

from __future__ import annotations

import asyncio

import pytest

from deploy.load.loops import LoadPoint, closed_loop, open_loop


def test_a_closed_loop_keeps_so_many_requests_under_way_and_counts_errors_by_kind() -> None:
    under_way: list[int] = [0]
    most: list[int] = []

    async def ask(number: int) -> str | None:
        under_way[0] += 1
        most.append(under_way[0])
        await asyncio.sleep(0.01)
        under_way[0] -= 1
        return "503: full" if number % 4 == 3 else None

    point = asyncio.run(closed_loop(ask, clients=3, seconds=0.3, rows=2))
    assert max(most) == 3
    assert point.errors.keys() == {"503: full"}
    assert point.answered + point.errors["503: full"] == len(most)
    assert point.latency is not None
    assert point.latency.min >= 9
    assert point.rows_per_second == pytest.approx(2 * point.answered / point.seconds)


def test_only_the_client_whose_request_failed_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    sleep = asyncio.sleep
    pauses: list[float] = []

    async def counted(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(seconds)

    async def ask(number: int) -> str | None:
        await sleep(0.005)
        return "503: full" if number % 4 == 3 else None

    monkeypatch.setattr(asyncio, "sleep", counted)
    point = asyncio.run(closed_loop(ask, clients=3, seconds=0.2, rows=1))
    assert len(pauses) == point.errors["503: full"]


def test_an_open_loop_counts_the_wait_from_when_a_request_was_due() -> None:
    def run(duration: float) -> LoadPoint:
        turn = asyncio.Lock()

        async def ask(_number: int) -> None:
            async with turn:  # one after another, as a server without batching
                await asyncio.sleep(duration)

        return asyncio.run(open_loop(ask, rate=100, seconds=0.5, rows=1, seed=0))

    fast, overloaded = run(0), run(0.03)
    assert fast.answered == overloaded.answered  # the same moments, whatever the server does
    assert 25 < fast.answered < 100
    assert fast.latency is not None
    assert overloaded.latency is not None
    # 30 ms each, three times as many as it can take: the last ones wait for about all of the others.
    assert overloaded.latency.max > 0.5 * 30 * overloaded.answered
    assert overloaded.requests_per_second < 1 / 0.03
