"""How queries are sent to engines: with or without a CUDA graph, waited for one by one or enqueued ahead.

per request    each query is waited for; its latency is what one user sees
back to back   queries are enqueued ahead, as under load; throughput is what counts, latency leaves waiting out
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Protocol

from deploy.backends.engine_timing import EngineTimer, Turn
from deploy.measuring.interleaving import Turns
from deploy.tasks.task import Feeds


class TimedEngine(Protocol):
    """What an open engine is to this benchmark."""

    def timer(self, feeds: Feeds, *, cuda_graph: bool) -> EngineTimer:
        """What times queries with these feeds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mode:
    """How queries are sent."""

    back_to_back: bool
    cuda_graph: bool

    def __str__(self) -> str:
        style = "back to back" if self.back_to_back else "per request"
        return f"{style}, {'CUDA graph' if self.cuda_graph else 'no CUDA graph'}"


MODES = tuple(
    Mode(back_to_back=back_to_back, cuda_graph=cuda_graph)
    for back_to_back in (False, True)
    for cuda_graph in (True, False)
)


class CaptureError(Exception):
    """An engine cannot be written down as a CUDA graph."""


@contextmanager
def timers(engines: Mapping[str, TimedEngine], feeds: Feeds, mode: Mode) -> Iterator[dict[str, EngineTimer]]:
    """Timers of all engines with the same feeds, open; by name.

    Raises:
        CaptureError: an engine that cannot be written down as a CUDA graph.
    """
    with ExitStack() as stack:
        opened = {}
        for name, engine in engines.items():
            try:
                timer = engine.timer(feeds, cuda_graph=mode.cuda_graph)
            except OSError as error:
                if not mode.cuda_graph:
                    raise
                raise CaptureError(f"{name}: not measured with a CUDA graph: {error}") from error
            opened[name] = stack.enter_context(timer)
        yield opened


def turns_of(timer: EngineTimer, mode: Mode) -> Turns[Turn]:
    """What a benchmark calls in turns."""
    measure = timer.back_to_back if mode.back_to_back else timer.per_request
    return Turns(measure=measure, settle=measure)


def compared(turn: Turn, mode: Mode) -> list[float]:
    """What speed-ups compare, in ms."""
    if mode.back_to_back:
        return [turn.walltime_ms / len(turn.queries)]
    return [query.latency for query in turn.queries]
