from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from deploy.serving import batcher as batcher_module
from deploy.serving.batch_queue import Ran
from deploy.serving.batcher import Batcher, BatchingSettings
from deploy.serving.faults import Fault, RequestFaultError
from deploy.serving.inference_statistics import InferenceStatistics

POISON = 99


class Doubler:
    """A model that doubles, fails on poison, and can be held."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []
        self.free = threading.Event()
        self.free.set()

    def __call__(self, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        assert self.free.wait(10)
        self.shapes.append(feeds["x"].shape)
        if (feeds["x"] == POISON).any():
            raise ValueError("poisoned")
        return {"y": feeds["x"] * 2, "total": feeds["x"].sum(axis=1)}


@asynccontextmanager
async def batching(model: Doubler, **settings: Any) -> AsyncIterator[Batcher]:
    batcher = Batcher(
        [model],
        settings=BatchingSettings(**({"max_rows": 8} | settings)),
        fills={},
        length_axes={"y": 1},
        statistics=InferenceStatistics(),
    )
    try:
        yield batcher
    finally:
        model.free.set()
        await batcher.close()


def ask(
    batcher: Batcher, value: int, *, rows: int = 1, length: int = 3, timeout: float | None = None
) -> asyncio.Future[Ran]:
    x = np.full((rows, length), value)
    return asyncio.ensure_future(batcher.submit({"x": x}, rows=rows, kind=4, length=4, timeout=timeout))


async def hold(model: Doubler, batcher: Batcher) -> asyncio.Future[Ran]:
    """Occupy the model until it is freed."""
    model.free.clear()
    first = ask(batcher, 0)
    await asyncio.sleep(0.02)
    return first


def run(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), 20))


def test_a_request_that_finds_the_model_idle_starts_alone_and_at_once() -> None:
    async def story() -> None:
        model = Doubler()
        async with batching(model) as batcher:
            ran = await ask(batcher, 5)
            assert ran.outputs["y"].tolist() == [[10, 10, 10]]
            assert model.shapes == [(1, 4)]

    run(story)


def test_requests_that_arrive_during_a_run_share_the_next_one_and_get_their_own_rows_and_lengths() -> None:
    async def story() -> None:
        model = Doubler()
        async with batching(model) as batcher:
            first = await hold(model, batcher)
            others = [ask(batcher, value, rows=rows, length=length) for value, rows, length in [(1, 1, 2), (2, 3, 4)]]
            await asyncio.sleep(0.02)
            model.free.set()
            await first
            small, large = await asyncio.gather(*others)
            assert small.outputs["y"].tolist() == [[2, 2]]
            assert small.outputs["total"].tolist() == [2]
            assert large.outputs["y"].tolist() == [[4] * 4] * 3
            assert model.shapes == [(1, 4), (4, 4)]

    run(story)


def test_no_run_has_more_rows_than_allowed() -> None:
    async def story() -> None:
        model = Doubler()
        async with batching(model) as batcher:
            first = await hold(model, batcher)
            others = [ask(batcher, 1, rows=3) for _ in range(5)]
            await asyncio.sleep(0.02)
            model.free.set()
            await asyncio.gather(first, *others)
            assert sorted(rows for rows, _ in model.shapes) == [1, 3, 6, 6]

    run(story)


def test_only_the_poisoned_request_of_a_batch_fails() -> None:
    async def story() -> None:
        model = Doubler()
        async with batching(model) as batcher:
            first = await hold(model, batcher)
            others = [ask(batcher, value) for value in (1, 2, POISON, 3)]
            await asyncio.sleep(0.02)
            model.free.set()
            await first
            found = await asyncio.gather(*others, return_exceptions=True)
            assert [ran.outputs["y"][0, 0] for ran in found if isinstance(ran, Ran)] == [2, 4, 6]
            assert isinstance(found[2], RequestFaultError)
            assert found[2].fault is Fault.INTERNAL
            assert (await ask(batcher, 4)).outputs["y"][0, 0] == 8

    run(story)


def test_a_full_queue_refuses() -> None:
    async def story() -> None:
        model = Doubler()
        async with batching(model, max_queue_size=2) as batcher:
            first = await hold(model, batcher)
            waiting = [ask(batcher, 1) for _ in range(2)]
            await asyncio.sleep(0.01)
            with pytest.raises(RequestFaultError, match="exceeds maximum queue size of 2") as caught:
                await ask(batcher, 1)
            assert caught.value.fault is Fault.UNAVAILABLE
            model.free.set()
            await asyncio.gather(first, *waiting)

    run(story)


@pytest.mark.parametrize(("own", "server"), [(0.05, 5.0), (5.0, 0.05), (None, 0.05)])
def test_a_request_waits_no_longer_than_it_or_the_server_says(own: float | None, server: float) -> None:
    async def story() -> None:
        model = Doubler()
        async with batching(model, queue_timeout=server) as batcher:
            first = await hold(model, batcher)
            late = ask(batcher, 1, timeout=own)
            with pytest.raises(RequestFaultError, match="timeout expired") as caught:
                await late
            assert caught.value.fault is Fault.UNAVAILABLE
            model.free.set()
            await first  # running is not waiting
            assert (await ask(batcher, 3)).outputs["y"][0, 0] == 6
            assert len(model.shapes) == 2

    run(story)


def test_a_request_that_is_given_up_leaves_the_queue() -> None:
    async def story() -> None:
        model = Doubler()
        async with batching(model) as batcher:
            first = await hold(model, batcher)
            gone = ask(batcher, 1)
            await asyncio.sleep(0.01)
            gone.cancel()
            await asyncio.sleep(0.01)
            model.free.set()
            await first
            assert (await ask(batcher, 2)).outputs["y"][0, 0] == 4
            assert model.shapes == [(1, 4), (1, 4)]

    run(story)


def test_a_request_that_is_given_up_while_its_batch_fails_is_not_run_again() -> None:
    async def story() -> None:
        model = Doubler()
        async with batching(model) as batcher:
            first = await hold(model, batcher)
            kept, gone, _ = others = [ask(batcher, value) for value in (1, 2, POISON)]
            await asyncio.sleep(0.02)
            model.free.set()
            await first
            model.free.clear()
            await asyncio.sleep(0.02)  # the batch of three runs
            gone.cancel()
            model.free.set()
            await asyncio.gather(*others, return_exceptions=True)
            assert (await kept).outputs["y"][0, 0] == 2
            assert model.shapes == [(1, 4), (3, 4), (1, 4), (1, 4)]

    run(story)


def test_clients_that_ask_again_once_answered_join_those_who_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batcher_module, "SETTLING", 1000.0)  # as long as it takes on a busy machine

    async def story() -> None:
        model = Doubler()

        async def client(batcher: Batcher) -> None:
            for _ in range(3):
                await ask(batcher, 1)

        async with batching(model) as batcher:
            ahead = await hold(model, batcher)
            others = [asyncio.create_task(client(batcher)) for _ in range(3)]
            await asyncio.sleep(0.02)
            model.free.set()
            await ahead
            await asyncio.gather(client(batcher), *others)
        assert [rows for rows, _ in model.shapes] == [1, 4, 4, 4]

    run(story)


def test_nobody_waits_longer_for_clients_that_do_not_come_back() -> None:
    async def story() -> None:
        model = Doubler()
        async with batching(model) as batcher:
            first = await hold(model, batcher)
            others = [ask(batcher, value) for value in (1, 2)]
            model.free.set()
            await first
            await asyncio.wait_for(asyncio.gather(*others), 5)
            assert model.shapes == [(1, 4), (2, 4)]

    run(story)


def test_with_a_delay_an_idle_model_waits_for_a_full_batch_and_no_longer() -> None:
    async def story() -> None:
        model = Doubler()
        async with batching(model, max_rows=2, queue_delay=5.0) as batcher:
            early = ask(batcher, 1)
            await asyncio.sleep(0.02)
            assert not early.done()
            await asyncio.gather(early, ask(batcher, 2))
            assert model.shapes == [(2, 4)]
        async with batching(model, queue_delay=0.02) as batcher:
            await ask(batcher, 1)

    run(story)
