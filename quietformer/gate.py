"""The one error that means "it ran, and the result is not good enough"."""

from __future__ import annotations


class GateFailedError(Exception):
    """A verdict is negative; the command line exits 1."""
