"""Bounds and permissions of the server."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSettings:
    """What the frontends allow."""

    host: str = "127.0.0.1"
    """Loopback unless somebody asks for more."""
    http_port: int = 8000
    """0 takes a free one."""
    grpc_port: int | None = None
    """None: no gRPC."""
    max_body_bytes: int = 64 << 20
    """Of one request, decompressed."""
    read_timeout: float = 30.0
    """Seconds that a request's head, or its body, may take to arrive."""
    idle_timeout: float = 300.0
    """Seconds that a connection may stay open without a request."""
    drain_timeout: float = 30.0
    """Seconds at most between SIGTERM and the end of new requests."""
    drain_quiet: float = 2.0
    """Draining ends early when no request came for so many seconds."""
    token: str | None = None
    """Bearer token that every request but health must carry; None asks for none."""
    allow_model_control: bool = False
    """Clients may load and unload models."""
    access_log: bool = False

    @property
    def url_host(self) -> str:
        """The host as addresses write it: IPv6 in brackets."""
        return f"[{self.host}]" if ":" in self.host else self.host

    def admits(self, authorization: str | None) -> bool:
        """Whether a request with this ``Authorization`` header may go on."""
        if self.token is None:
            return True
        return hmac.compare_digest((authorization or "").encode(), f"Bearer {self.token}".encode())


def read_token(file: Path) -> str:
    """The bearer token in a file, without white space around it.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is empty.
    """
    token = file.read_text(encoding="utf-8").strip()
    if not token:
        raise ValueError(f"{file} is empty; expected a token")
    return token
