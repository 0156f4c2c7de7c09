"""What a benchmark found, with what one must know to read it. Fields are named as trtexec names them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from deploy.machine import MachineFacts
from deploy.measuring.gpu_clocks import GpuClocks
from deploy.measuring.latency_statistics import LatencySummary, SpeedUp

HOST_METHOD = "interleaved rounds; host time of one synchronous call, nothing enqueued ahead, no tokenization"


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceTimes:
    """What the device adds to the times of an engine, in ms per query; see :mod:`deploy.backends.engine_timing`."""

    gpu_compute_ms: LatencySummary
    h2d_ms: LatencySummary
    d2h_ms: LatencySummary
    enqueue_ms: LatencySummary
    host_latency_ms: LatencySummary | None
    """With staging and waiting; None where queries were sent back to back."""
    total_gpu_compute_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class CandidateTiming:
    """Measurements of one candidate, named as trtexec names them."""

    name: str
    precision: str
    throughput_qps: float
    """Queries (calls of ``infer``) per second of host walltime."""
    throughput_samples: float
    """Rows of the batch per second of host walltime."""
    latency_ms: LatencySummary
    total_host_walltime_s: float
    """Host time spent in recorded rounds."""
    num_queries: int
    speed_up: SpeedUp | None
    """Over the baseline; None for the baseline itself."""
    rounds_ms: tuple[tuple[float, ...], ...]
    """Every recorded latency, by round."""
    device: DeviceTimes | None = None
    """Of an engine."""
    products: dict[str, int] | None = None
    """Of an engine: its matrix products by the type that they ran in; None where it does not tell."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchReport:
    """A benchmark with what one must know to read it."""

    batch_size: int
    length: int | None
    """Longest sequence fed, in tokens, padding included; None where no input has tokens."""
    baseline: str
    """Name of the candidate that speed-ups refer to."""
    timings: tuple[CandidateTiming, ...]
    warnings: tuple[str, ...]
    repeats: int
    seconds: float
    """Recorded time per candidate and repeat."""
    warmup_seconds: float
    machine: MachineFacts
    method: str = HOST_METHOD
    mode: str = ""
    """Of engines, how queries were sent: ``per request``, ``back to back``, with a CUDA graph or without."""
    verdicts: tuple[str, ...] = ()
    """Of engines, in words: whether fewer bits are worth it on this GPU."""
    gpu: dict[str, str] = field(default_factory=dict)
    """Where a GPU took part: device and driver."""
    clocks: GpuClocks | None = None
    """Of that GPU meanwhile; None where its driver's tool tells nothing."""

    @property
    def title(self) -> str:
        """Shape and mode, for people."""
        return ", ".join(filter(None, [shape_text(self.batch_size, self.length), self.mode]))

    @property
    def slug(self) -> str:
        """The same, for names of files and anchors."""
        mode = "".join(letter if letter.isalnum() else "-" for letter in self.mode)
        return "-".join(filter(None, ["latency", str(self.batch_size), str(self.length), mode]))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def shape_text(batch: int, length: int | None) -> str:
    """A shape for people: ``batch 1, length 128``, or ``batch 8`` where no input has tokens."""
    return f"batch {batch}" if length is None else f"batch {batch}, length {length}"
