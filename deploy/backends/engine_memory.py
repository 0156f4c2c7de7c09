"""The memory of an engine's inputs and outputs: sized by the shapes of a run, filled, copied to the GPU and back.

Unverified on a device, as all of :mod:`deploy.backends.tensorrt_gpu`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from deploy.backends.base import Feeds
from deploy.backends.cuda_stream import Buffer, CudaStream
from deploy.graphs.shapes import joined_sizes


class EngineMemory:
    """Buffers of one execution context.

    Args:
        stream: that copies run on, and whose memory this is.
        context: the library's; told shapes and addresses.
        output_types: type of every output.
    """

    def __init__(self, stream: CudaStream, context: Any, output_types: Mapping[str, np.dtype[Any]]) -> None:
        self._stream, self._context, self._output_types = stream, context, dict(output_types)
        self._buffers: dict[str, Buffer] = {}

    def set_shapes(self, feeds: Feeds) -> None:
        """Tell the engine the shapes, and give it memory that is large enough.

        Raises:
            ValueError: a shape that the engine refuses, or an output whose shape depends on the data.
        """
        for name, array in feeds.items():
            if not self._context.set_input_shape(name, array.shape):
                raise ValueError(f"the engine refuses shape {joined_sizes(array.shape)} of input '{name}'")
        for name in self._output_types:
            if min(shape := self._output_shape(name), default=0) < 0:
                raise ValueError(
                    f"output '{name}' has shape {joined_sizes(shape)}, which depends on the data: not supported"
                )
        sizes = {name: array.nbytes for name, array in feeds.items()}
        sizes |= {name: self._output_bytes(name) for name in self._output_types}
        for name, size in sizes.items():
            held = self._buffers.get(name)
            if held is None or held.num_bytes < size:
                if held is not None:
                    self._stream.free(held)
                self._buffers[name] = self._stream.allocate(size)
                self._context.set_tensor_address(name, self._buffers[name].device)

    def fill(self, feeds: Feeds) -> None:
        """Write inputs into the host's side of the buffers."""
        for name, array in feeds.items():
            self._buffers[name].view(array.shape, array.dtype)[...] = array

    def copy_in(self, feeds: Feeds) -> None:
        """Inputs to the GPU, on the stream."""
        for name, array in feeds.items():
            self._stream.to_device(self._buffers[name], array.nbytes)

    def copy_out(self) -> None:
        """Outputs to the host, on the stream."""
        for name in self._output_types:
            self._stream.to_host(self._buffers[name], self._output_bytes(name))

    def outputs(self) -> dict[str, np.ndarray]:
        """Copies of the outputs that the host has, by name."""
        return {
            name: self._buffers[name].view(self._output_shape(name), kind).copy()
            for name, kind in self._output_types.items()
        }

    def _output_shape(self, name: str) -> tuple[int, ...]:
        return tuple(map(int, self._context.get_tensor_shape(name)))

    def _output_bytes(self, name: str) -> int:
        return math.prod(self._output_shape(name)) * self._output_types[name].itemsize
