"""Ctrl-C while native code runs: raised in one of its callbacks it would be swallowed, so it waits until the code returns."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_signals() -> Iterator[list[int]]:
    """Deliver SIGINT and SIGTERM when the block ends; the list fills with those that wait."""
    held: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield held
        return
    earlier = {number: signal.signal(number, lambda n, _: held.append(n)) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield held
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
    if held:
        signal.raise_signal(held[0])
