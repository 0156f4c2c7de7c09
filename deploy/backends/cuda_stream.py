"""Memory, one stream, its events and CUDA graphs of the first GPU, through the driver's own library: no Python package is needed.

Functions and constants are those of NVIDIA's CUDA driver API reference. Unverified: no GPU was at hand when this was written;
it is tested on a stand-in of the driver whose device memory is the host's.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

from deploy.backends.cuda_devices import load_driver

_NON_BLOCKING = 1
"""CU_STREAM_NON_BLOCKING: does not wait for the default stream."""
_THREAD_LOCAL = 1
"""CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: other threads may go on using the device."""


_OUT_OF_MEMORY = 2
"""CUDA_ERROR_OUT_OF_MEMORY."""


class CudaError(OSError):
    """The driver refused a call."""


@dataclass(kw_only=True, slots=True)
class Buffer:
    """Memory on the device and pinned memory on the host, of the same size."""

    device: int
    host: int
    num_bytes: int

    def view(self, shape: tuple[int, ...], kind: np.dtype[Any]) -> np.ndarray:
        """The host's part as an array; not a copy."""
        size = int(np.prod(shape)) * kind.itemsize
        memory = (ctypes.c_uint8 * size).from_address(self.host)
        return np.ctypeslib.as_array(memory).view(kind).reshape(shape)


class CudaStream:
    """A stream on the first GPU, with what runs on it. ``close`` gives everything back.

    Raises:
        CudaError: the driver refuses a call; names the call and its error number.
    """

    def __init__(self) -> None:
        self._driver: Any = load_driver()
        if self._driver is None:
            raise CudaError("no CUDA driver library on this machine")
        self._buffers: list[Buffer] = []
        self._graphs: list[ctypes.c_void_p] = []
        self._events: list[ctypes.c_void_p] = []
        self._device, self._context, self._stream = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuInit", ctypes.c_uint(0))
        self._call("cuDeviceGet", ctypes.byref(self._device), ctypes.c_int(0))
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self._device)
        self._call("cuCtxSetCurrent", self._context)
        self._call("cuStreamCreate", ctypes.byref(self._stream), ctypes.c_uint(_NON_BLOCKING))

    @property
    def handle(self) -> int:
        """Number by which TensorRT knows the stream."""
        return self._stream.value or 0

    def use_here(self) -> None:
        """Make the device's context that of the calling thread."""
        self._call("cuCtxSetCurrent", self._context)

    def allocate(self, num_bytes: int) -> Buffer:
        """Memory on both sides; freed by :meth:`free` or :meth:`close`."""
        size = max(num_bytes, 1)
        device, host = ctypes.c_uint64(), ctypes.c_void_p()
        self._call("cuMemAlloc_v2", ctypes.byref(device), ctypes.c_size_t(size))
        try:
            self._call("cuMemHostAlloc", ctypes.byref(host), ctypes.c_size_t(size), ctypes.c_uint(0))
        except CudaError:
            self._call("cuMemFree_v2", device)
            raise
        buffer = Buffer(device=device.value, host=host.value or 0, num_bytes=size)
        self._buffers.append(buffer)
        return buffer

    def free(self, buffer: Buffer) -> None:
        """Give a buffer back; graphs that use it must be dropped first."""
        self._buffers.remove(buffer)
        self._call("cuMemFree_v2", ctypes.c_uint64(buffer.device))
        self._call("cuMemFreeHost", ctypes.c_void_p(buffer.host))

    def to_device(self, buffer: Buffer, num_bytes: int) -> None:
        """Copy the start of a buffer, host to device, in the stream's order."""
        size = ctypes.c_size_t(num_bytes)
        self._call(
            "cuMemcpyHtoDAsync_v2", ctypes.c_uint64(buffer.device), ctypes.c_void_p(buffer.host), size, self._stream
        )

    def to_host(self, buffer: Buffer, num_bytes: int) -> None:
        """Copy the start of a buffer, device to host, in the stream's order."""
        size = ctypes.c_size_t(num_bytes)
        self._call(
            "cuMemcpyDtoHAsync_v2", ctypes.c_void_p(buffer.host), ctypes.c_uint64(buffer.device), size, self._stream
        )

    def wait(self) -> None:
        """Return when everything that was put on the stream is done."""
        self._call("cuStreamSynchronize", self._stream)

    def event(self) -> ctypes.c_void_p:
        """A mark in time, to be put on the stream by :meth:`record`."""
        event = ctypes.c_void_p()
        self._call("cuEventCreate", ctypes.byref(event), ctypes.c_uint(0))
        self._events.append(event)
        return event

    def record(self, event: ctypes.c_void_p) -> None:
        """Let the device note the time when everything before is done."""
        self._call("cuEventRecord", event, self._stream)

    def milliseconds(self, start: ctypes.c_void_p, end: ctypes.c_void_p) -> float:
        """Device time between two recorded marks; both must have been waited for."""
        span = ctypes.c_float()
        self._call("cuEventElapsedTime", ctypes.byref(span), start, end)
        return span.value

    def drop_event(self, event: ctypes.c_void_p) -> None:
        """Forget a mark."""
        self._events.remove(event)
        self._call("cuEventDestroy_v2", event)

    def begin_capture(self) -> None:
        """From here on, work is written down instead of run."""
        self._call("cuStreamBeginCapture_v2", self._stream, ctypes.c_int(_THREAD_LOCAL))

    def end_capture(self, *, keep: bool = True) -> ctypes.c_void_p | None:
        """What was written down, ready to be launched; None, and forgotten, unless ``keep``."""
        graph, ready = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuStreamEndCapture", self._stream, ctypes.byref(graph))
        if keep:
            self._call("cuGraphInstantiateWithFlags", ctypes.byref(ready), graph, ctypes.c_uint64(0))
            self._graphs.append(ready)
        if graph.value:
            self._call("cuGraphDestroy", graph)
        return ready if keep else None

    def launch(self, graph: ctypes.c_void_p) -> None:
        """Put all of a graph's work on the stream with one call."""
        self._call("cuGraphLaunch", graph, self._stream)

    def drop(self, graph: ctypes.c_void_p) -> None:
        """Forget a graph."""
        self._graphs.remove(graph)
        self._call("cuGraphExecDestroy", graph)

    def close(self) -> None:
        """Give everything back; a second call does nothing."""
        if not self._context.value:
            return
        self.use_here()
        self.wait()
        for graph in list(self._graphs):
            self.drop(graph)
        for event in list(self._events):
            self.drop_event(event)
        for buffer in list(self._buffers):
            self.free(buffer)
        self._call("cuStreamDestroy_v2", self._stream)
        self._call("cuDevicePrimaryCtxRelease_v2", self._device)
        self._context = ctypes.c_void_p()

    def _call(self, name: str, *arguments: Any) -> None:
        if code := getattr(self._driver, name)(*arguments):
            what = ", out of memory" if code == _OUT_OF_MEMORY else ""
            raise CudaError(f"the CUDA driver refuses {name} (error {code}{what})")
