"""What the benchmarks of serving share: clients in a process of their own that ask without a pause, our server to ask, processor time."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

NAME = "measured"
"""Of our server's model."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What the clients are to do."""

    port: int
    requests: list[bytes]
    clients: int
    seconds: float = 600.0
    most: int = 1 << 40
    """Requests of each client."""


class Clients:
    """Connections that ask without a pause, and what they met."""

    def __init__(self, job: Job) -> None:
        self.latencies: list[float] = []
        self.errors: list[str] = []
        self._job = job
        self._stop_at = time.monotonic() + job.seconds

    async def run(self) -> None:
        """Until the time is over or every client has asked often enough."""
        await asyncio.gather(*(self._ask(self._job.requests[number:]) for number in range(self._job.clients)))

    async def _ask(self, requests: list[bytes]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._job.port, limit=1 << 22)
        number = 0
        while time.monotonic() < self._stop_at and number < self._job.most:
            started = time.perf_counter()
            writer.write(requests[number % len(requests)])
            head = await reader.readuntil(b"\r\n\r\n")
            (size,) = re.findall(rb"\r\ncontent-length: (\d+)", head)
            body = await reader.readexactly(int(size))
            self.latencies.append(time.perf_counter() - started)
            if not head.startswith(b"HTTP/1.1 200"):
                self.errors.append(body[:100].decode())
            number += 1
        writer.close()


def clients_process(pipe: Any) -> None:
    """Answer every :class:`Job` with (seconds, latencies, errors), until None comes."""
    while (job := pipe.recv()) is not None:
        started = time.perf_counter()
        clients = Clients(job)
        uvloop.run(clients.run())
        pipe.send((time.perf_counter() - started, clients.latencies, clients.errors))


def start_server(graph: Path, log: Path, options: list[str]) -> tuple[subprocess.Popen[bytes], int]:
    """The server's process and port."""
    command = [sys.executable, "-m", "quietformer", "serve", str(graph), "--name", NAME, "--port", "0", *options]
    with log.open("wb") as stream:
        process = subprocess.Popen(command, stderr=stream, cwd=Path(__file__).parents[1])
    while (found := re.search(r"ready: http://\S+:(\d+)", log.read_text())) is None:
        if process.poll() is not None:
            raise SystemExit(log.read_text())
        time.sleep(0.05)
    return process, int(found[1])


def cpu_seconds(pid: int) -> float:
    """Processor time so far of a process and of those that it started and that still run."""
    parents, times = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        parents[int(folder.name)] = int(fields[1])
        times[int(folder.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    family = {pid}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(times.get(member, 0.0) for member in family)
