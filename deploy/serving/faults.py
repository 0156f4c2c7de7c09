"""Why a request is not answered, and how each protocol says so."""

from __future__ import annotations

from enum import Enum


class Fault(Enum):
    """A kind of refusal: status of HTTP, name of the gRPC status."""

    INVALID = (400, "INVALID_ARGUMENT")
    UNAUTHENTICATED = (401, "UNAUTHENTICATED")
    NOT_FOUND = (404, "NOT_FOUND")
    METHOD = (405, "UNIMPLEMENTED")
    SLOW = (408, "DEADLINE_EXCEEDED")
    TOO_LARGE = (413, "RESOURCE_EXHAUSTED")
    INTERNAL = (500, "INTERNAL")
    UNSUPPORTED = (501, "UNIMPLEMENTED")
    UNAVAILABLE = (503, "UNAVAILABLE")

    @property
    def http_status(self) -> int:
        """Status code of the HTTP answer."""
        return self.value[0]

    @property
    def grpc_status(self) -> str:
        """Name of the ``grpc.StatusCode``."""
        return self.value[1]

    @property
    def reason(self) -> str:
        """Triton's name for it where failed requests are counted."""
        return {Fault.UNAVAILABLE: "REJECTED", Fault.INTERNAL: "BACKEND"}.get(self, "OTHER")


class RequestFaultError(Exception):
    """A request that is refused; the message is for the client."""

    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


def invalid(message: str) -> RequestFaultError:
    """A mistake of the client."""
    return RequestFaultError(Fault.INVALID, message)
