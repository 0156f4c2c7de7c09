"""What keeps a GPU from computing: a host that enqueues too slowly, or copies that take longer than the engine."""

from __future__ import annotations

from collections.abc import Iterator

from deploy.measuring.bench_report import DeviceTimes

_ENQUEUE_SHARE = 0.8
"""Of the compute time; above it the device waits for the host now and then."""
_TRANSFER_SHARE = 0.5
"""Of the latency, both ways together."""


def device_warnings(name: str, times: DeviceTimes, *, cuda_graph: bool) -> Iterator[str]:
    """What a reader must know before taking a latency for the engine's own.

    Args:
        name: candidate, for the message.
        times: of the candidate.
        cuda_graph: whether it ran as a CUDA graph, which is the cure for slow enqueueing.
    """
    compute, enqueue = times.gpu_compute_ms.median, times.enqueue_ms.median
    if enqueue > _ENQUEUE_SHARE * compute:
        cure = "a larger batch keeps it busy" if cuda_graph else "a CUDA graph or a larger batch keeps it busy"
        yield (
            f"{name}: enqueue-bound: the host needs {enqueue:.3g} ms to send a query that the GPU computes in "
            f"{compute:.3g} ms; {cure}"
        )
    transfer = times.h2d_ms.median + times.d2h_ms.median
    if transfer > _TRANSFER_SHARE * (transfer + compute):
        yield (
            f"{name}: transfer-bound: copies take {transfer:.3g} ms ({times.h2d_ms.median:.3g} to the device, "
            f"{times.d2h_ms.median:.3g} back) beside {compute:.3g} ms of computing; a faster engine gains little"
        )
