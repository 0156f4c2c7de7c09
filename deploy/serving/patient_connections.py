"""Connections of the HTTP server: how long one may stay idle, and how long it may take to send a request's head."""

from __future__ import annotations

import asyncio
from typing import Any

try:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
except ImportError as error:
    raise ImportError("uvicorn or httptools is not installed: pip install 'quietformer[serve]'") from error


class TimedConnection(HttpToolsProtocol):
    """Closes a connection whose request does not begin, or whose head does not end, in time.

    Bodies are timed by the application, pauses between requests by uvicorn (``timeout_keep_alive``).
    """

    head_timeout = 30.0
    """Seconds from the first byte of a request to the end of its head."""
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start to wait for the first request."""
        super().connection_made(transport)
        self._wait(self.timeout_keep_alive)

    def on_message_begin(self) -> None:
        """Start to wait for the end of the head."""
        super().on_message_begin()
        self._wait(self.head_timeout)

    def on_headers_complete(self) -> None:
        """The head is there."""
        self._stop_waiting()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing more will come."""
        self._stop_waiting()
        super().connection_lost(exc)

    def timeout_keep_alive_handler(self) -> None:
        """Close; a client that does not even read its answer is cut off."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        super().timeout_keep_alive_handler()

    def _wait(self, seconds: float) -> None:
        self._stop_waiting()
        self._timer = self.loop.call_later(seconds, self._give_up)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        if not self.transport.is_closing():
            self.transport.abort()


def timed_connections(head_timeout: float) -> type[Any]:
    """The class of connections with this bound."""
    return type("TimedConnection", (TimedConnection,), {"head_timeout": head_timeout})
