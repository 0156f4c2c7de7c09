"""One HTTP request as the application reads it: method, path, headers, and a body within bounds."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, TypeVar

from deploy.serving.faults import Fault, RequestFaultError, invalid
from deploy.serving.server_settings import ServerSettings

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
_Result = TypeVar("_Result")
_INLINE_BYTES = 1 << 16
"""Larger bodies are decompressed in a thread, so that the event loop goes on."""


class ClientGoneError(Exception):
    """There is nobody to answer any more."""


class HttpRequest:
    """A request whose body may still be on its way.

    Args:
        scope: of ASGI.
        receive: of ASGI.
    """

    def __init__(self, scope: Message, receive: Receive) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self._headers: dict[bytes, bytes] = dict(scope["headers"])
        self._receive = receive

    def header(self, name: bytes) -> str | None:
        """A header by its name in lower case."""
        value = self._headers.get(name)
        return None if value is None else value.decode("latin-1")

    def allow(self, method: str) -> None:
        """Refuse every other method."""
        if self.method != method:
            raise RequestFaultError(Fault.METHOD, f"{self.method} is not allowed here; use {method}")

    async def body(self, settings: ServerSettings) -> bytes:
        """The whole body, decompressed.

        Raises:
            RequestFaultError: too large, too slow, or not compressed as it says.
            ClientGoneError: the connection was closed.
        """
        cap = settings.max_body_bytes
        stated = self._headers.get(b"content-length", b"0")
        if stated.isdigit() and int(stated) > cap:
            raise _too_large(cap)
        try:
            async with asyncio.timeout(settings.read_timeout):
                body = await self._received(cap)
        except TimeoutError as error:
            message = f"the body did not arrive within {settings.read_timeout:g} s"
            raise RequestFaultError(Fault.SLOW, message) from error
        encoding = self._headers.get(b"content-encoding", b"identity").lower()
        if encoding == b"identity":
            return body
        if encoding not in (b"gzip", b"deflate"):
            message = f"content-encoding is '{encoding.decode('latin-1'):.40}'; expected gzip or deflate"
            raise RequestFaultError(Fault.UNSUPPORTED, message)
        if len(body) <= _INLINE_BYTES:
            return _decompressed(body, cap)
        return await asyncio.get_running_loop().run_in_executor(None, _decompressed, body, cap)

    async def while_connected(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """The result of work that nobody else waits for; it is cancelled when the client closes the connection.

        The body must have been read.

        Raises:
            ClientGoneError: the connection was closed before the work was done.
        """
        task = asyncio.current_task()
        assert task is not None
        is_gone = False

        async def watch() -> None:
            nonlocal is_gone
            while (await self._receive())["type"] != "http.disconnect":
                pass
            is_gone = True
            task.cancel()

        watching = asyncio.create_task(watch())
        try:
            return await work
        except asyncio.CancelledError:
            if is_gone and not task.uncancel():  # not the end of the server
                raise ClientGoneError from None
            raise
        finally:
            watching.cancel()

    async def _received(self, cap: int) -> bytes:
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > cap:
                raise _too_large(cap)
            if not message.get("more_body", False):
                return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _too_large(cap: int) -> RequestFaultError:
    return RequestFaultError(Fault.TOO_LARGE, f"the body is above the {cap} bytes that a request may have")


def _decompressed(body: bytes, cap: int) -> bytes:
    """Of gzip or zlib, told apart by their heads; never more than the cap in memory."""
    machine = zlib.decompressobj(wbits=47)
    try:
        text = machine.decompress(body, cap + 1)
    except zlib.error as error:
        raise invalid(f"the body is not compressed as its content-encoding says: {error}") from error
    if len(text) > cap:
        raise _too_large(cap)
    if not machine.eof:
        raise invalid("the compressed body ends too early")
    return text
