"""What a person sees while a command works, on stderr: a bar on a terminal, plain lines now and then elsewhere.

stdout is kept for results, so that it can be piped.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

_PLAIN_SECONDS = 10.0
"""Without a terminal, at most one line in so many seconds."""


class Job(Protocol):
    """What long work reports to."""

    def advance(self, done: int, total: int, note: str = "") -> None:
        """Tell that ``done`` of ``total`` steps are done, and a word about the last one."""

    def tell(self, text: str) -> None:
        """Tell what is being done, where steps cannot be counted."""


def say(text: str) -> None:
    """Print one line on stderr."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def progress(title: str) -> Iterator[Job]:
    """Show a job that may take more than two seconds."""
    if sys.stderr.isatty():
        with _terminal_job(title) as job:
            yield job
    else:
        yield _PlainJob(title)


@contextmanager
def _terminal_job(title: str) -> Iterator[Job]:
    # rich costs about 0.1 s to import: only a terminal pays.
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        Progress,
        SpinnerColumn,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(title, total=None, note="")

        class TerminalJob:
            def advance(self, done: int, total: int, note: str = "") -> None:
                bars.update(task, completed=done, total=total, note=note)

            def tell(self, text: str) -> None:
                bars.update(task, note=text)

        yield TerminalJob()


class _PlainJob:
    """Progress where stderr is a file or a pipe."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._last = time.monotonic()
        self._start: tuple[float, int] | None = None
        """When steps were first counted, and how many were done then."""

    def advance(self, done: int, total: int, note: str = "") -> None:
        now = time.monotonic()
        if self._start is None or done <= self._start[1]:
            self._start = now, done
        began, first = self._start
        left = f", about {(now - began) / (done - first) * (total - done):.0f} s left" if done > first else ""
        self.tell(f"{done}/{total}" + (f", {note}" if note else "") + left)

    def tell(self, text: str) -> None:
        now = time.monotonic()
        if now - self._last >= _PLAIN_SECONDS:
            self._last = now
            say(f"{self._title}: {text}")
