"""Clocks of a GPU while something is measured on it, as the driver's own tool ``nvidia-smi`` tells them.

A GPU that is idle, hot or at its power limit runs at another clock than its best: a latency without its clock cannot be compared.
The tool comes with every driver; where it is missing or tells nothing, nothing is said. Unverified on a device: tested on
lines in its form.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from tempfile import TemporaryFile

from deploy.backends.cuda_devices import CudaDevice

PROGRAM = "nvidia-smi"
_REASON_FIELDS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
"""Of newer and of older drivers; a field that it does not know ends the tool with an error."""
_FIELDS = ("clocks.sm", "clocks.mem", "clocks.max.sm", "temperature.gpu", "power.draw", "persistence_mode")
_PERIOD_MS = 500
_PATIENCE_S = 10.0
_POLL_S = 0.01
REASONS = {
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""Bits of NVML's clock event reasons that hold a busy GPU back; left out are idleness and clocks that somebody set."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuClocks:
    """What a GPU did during a measurement. None where the tool answers that it does not know."""

    samples: int
    sm_mhz: tuple[int, int, int] | None
    """Least, median and greatest clock of the multiprocessors."""
    sm_limit_mhz: int | None
    """The greatest that it can have."""
    memory_mhz: int | None
    """Median."""
    temperature_c: int | None
    """Greatest."""
    power_w: float | None
    """Greatest."""
    persistence: bool | None
    """Whether the driver stays loaded between programs."""
    held_back: dict[str, float]
    """Share of the samples in which something held the clocks back, by reason."""

    def summary(self) -> str:
        """In a line, for people."""
        parts = []
        if self.sm_mhz is not None:
            low, middle, high = self.sm_mhz
            limit = f" of {self.sm_limit_mhz}" if self.sm_limit_mhz is not None else ""
            parts.append(f"SM clock {middle} MHz ({low} to {high}{limit})")
        if self.memory_mhz is not None:
            parts.append(f"memory {self.memory_mhz} MHz")
        if self.temperature_c is not None:
            parts.append(f"up to {self.temperature_c} °C")
        if self.power_w is not None:
            parts.append(f"up to {self.power_w:.0f} W")
        if self.persistence is not None:
            parts.append(f"persistence {'on' if self.persistence else 'off'}")
        return ", ".join(parts)

    def warnings(self) -> Iterator[str]:
        """What held the clocks back."""
        for reason, share in self.held_back.items():
            yield f"GPU clocks were held back in {share:.0%} of {self.samples} samples: {reason}; {self.summary()}"


def read_clocks(lines: Iterable[str]) -> GpuClocks | None:
    """Sum up the lines of the tool, one per sample in the order of its query; others are passed over.

    Returns:
        None where no line is a sample.
    """
    rows = [[cell.strip() for cell in line.split(",")] for line in lines]
    rows = [row for row in rows if len(row) == len(_FIELDS) + 1 and row[-1].startswith("0x")]
    if not rows:
        return None
    sm, memory, limit, heat, power = ([_number(row[place]) for row in rows] for place in range(5))
    clocks = [int(value) for value in sm if value is not None]
    masks = [int(row[-1], 16) for row in rows]
    shares = {name: sum(bool(mask & bit) for mask in masks) / len(masks) for bit, name in REASONS.items()}
    known_modes = [row[5] for row in rows if row[5] in ("Enabled", "Disabled")]
    return GpuClocks(
        samples=len(rows),
        sm_mhz=(min(clocks), int(median(clocks)), max(clocks)) if clocks else None,
        sm_limit_mhz=_whole(max((value for value in limit if value is not None), default=None)),
        memory_mhz=_whole(median(known) if (known := [value for value in memory if value is not None]) else None),
        temperature_c=_whole(max((value for value in heat if value is not None), default=None)),
        power_w=max((value for value in power if value is not None), default=None),
        persistence=known_modes[-1] == "Enabled" if known_modes else None,
        held_back={name: round(share, 3) for name, share in shares.items() if share},
    )


def _number(cell: str) -> float | None:
    """``[N/A]`` and its kin are no numbers."""
    try:
        return float(cell)
    except ValueError:
        return None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


class ClockWatch:
    """What :func:`watched_clocks` hands out."""

    clocks: GpuClocks | None = None
    """Set at its end."""


@contextmanager
def watched_clocks(device: CudaDevice | None) -> Iterator[ClockWatch]:
    """Let the tool sample a GPU's clocks twice a second meanwhile; nothing happens without a GPU or without the tool."""
    watch = ClockWatch()
    query = None if device is None else _query(device)
    if query is None:
        yield watch
        return
    with TemporaryFile("w+") as told:
        process = subprocess.Popen(
            [*query, f"--loop-ms={_PERIOD_MS}"], stdin=subprocess.DEVNULL, stdout=told, stderr=subprocess.DEVNULL
        )
        try:
            _await_first_line(process, told.fileno())
            yield watch
        finally:
            process.terminate()
            try:
                process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        told.seek(0)
        watch.clocks = read_clocks(told)


def _await_first_line(process: subprocess.Popen[bytes], told: int) -> None:
    """The tool's start takes the host's time: not while something is measured."""
    until = time.monotonic() + _PATIENCE_S
    while os.fstat(told).st_size == 0 and process.poll() is None and time.monotonic() < until:
        time.sleep(_POLL_S)


def _query(device: CudaDevice) -> list[str] | None:
    """The tool's command line in words that this driver knows; None where it answers to none."""
    program = shutil.which(PROGRAM)
    if program is None:
        return None
    place = [f"--id={device.pci}"] if device.pci else []
    for reasons in _REASON_FIELDS:
        command = [program, f"--query-gpu={','.join((*_FIELDS, reasons))}", "--format=csv,noheader,nounits", *place]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PATIENCE_S)
        except (OSError, subprocess.TimeoutExpired):
            return None
        if done.returncode == 0 and read_clocks(done.stdout.splitlines()) is not None:
            return command
    return None
