"""An inference request and its answer, whichever protocol carried them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from deploy.serving.faults import invalid


@dataclass(frozen=True, kw_only=True, slots=True)
class WantedOutput:
    """An output that a client names."""

    name: str
    binary: bool
    """As raw bytes, or as JSON values."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InferRequest:
    """What a client asks of a model."""

    id: str
    inputs: dict[str, np.ndarray]
    """Tensors by name; strings as objects (``bytes``)."""
    outputs: tuple[WantedOutput, ...]
    """Empty: all of them."""
    binary_outputs: bool
    """Form of outputs that are not named."""
    timeout: float | None
    """Seconds that it may wait in the queue; None leaves it to the server."""

    def wanted(self, known: tuple[str, ...]) -> tuple[WantedOutput, ...]:
        """The outputs to answer with, in order."""
        return self.outputs or tuple(WantedOutput(name=name, binary=self.binary_outputs) for name in known)


@dataclass(frozen=True, kw_only=True, slots=True)
class InferAnswer:
    """What a model answers."""

    model: str
    version: str
    id: str
    outputs: dict[str, np.ndarray]
    """By name, in the order to send them."""
    wanted: tuple[WantedOutput, ...]


def read_timeout(value: Any) -> float | None:
    """Seconds from the parameter ``timeout`` (microseconds); 0 leaves it to the server.

    Raises:
        RequestFaultError: not a non-negative integer.
    """
    if value is None:
        return None
    if type(value) is not int or value < 0:
        raise invalid(f"parameter 'timeout' is {value!r:.40}; expected microseconds")
    return value / 1e6 if value else None
