"""Clients that never finish what they send are let go in time."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
import uvicorn

from deploy.serving.http_app import HttpApp
from deploy.serving.model_repository import ModelRepository
from deploy.serving.patient_connections import timed_connections
from deploy.serving.server_settings import ServerSettings
from deploy.serving.server_state import ServerState

INFER = b"POST /v2/models/any/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n"


class EveryModel:
    """A repository that knows every name; nothing of it is run here."""

    def find(self, _name: str, _version: str = "") -> None:
        return None


async def served(talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bytes]]) -> tuple[bytes, float]:
    """What a client gets of a server that waits 0.3 s for heads and bodies and 1 s for requests, and after how long."""
    state = ServerState(cast(ModelRepository, EveryModel()), ServerSettings(read_timeout=0.3), version="0")
    config = uvicorn.Config(
        HttpApp(state), http=timed_connections(0.3), loop="none", ws="none", lifespan="off", log_config=None,
        timeout_keep_alive=1,
    )  # fmt: skip
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server._serve([listener]))  # without its signal handlers
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    started = time.monotonic()
    try:
        return await talk(reader, writer), time.monotonic() - started
    finally:
        writer.close()
        server.should_exit = True
        await serving


def outcome(sent: bytes) -> tuple[bytes, float]:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(sent)
        try:
            return await reader.read(100)
        except ConnectionResetError:
            return b""

    async def story() -> Any:
        return await asyncio.wait_for(served(talk), 20)

    return cast(tuple[bytes, float], asyncio.run(story()))


@pytest.mark.parametrize("sent", [b"P", INFER], ids=["a letter", "a head without its end"])
def test_a_head_that_does_not_end_is_cut_off(sent: bytes) -> None:
    answer, seconds = outcome(sent)
    assert answer == b""
    assert 0.25 < seconds < 10


def test_a_body_that_does_not_come_is_refused_with_408() -> None:
    answer, seconds = outcome(INFER + b"\r\n123")
    assert answer.startswith(b"HTTP/1.1 408")
    assert 0.25 < seconds < 10


def test_a_connection_without_a_request_is_closed_after_the_idle_time() -> None:
    answer, seconds = outcome(b"")
    assert answer == b""
    assert 0.9 < seconds < 10
