"""Values of a graph's constants, wherever they are: in the graph, in its own file by a reference, or in a file beside it.

A reference is ONNX's own for external data; an outline (:mod:`deploy.graphs.graph_outline`) gives the ONNX file's name as its
location. Values that are read are never kept in the graph: a protobuf message gives no memory back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.external_data_helper import (
    ExternalDataInfo,
    load_external_data_for_tensor,
    set_external_data,
    uses_external_data,
)

_PART_BYTES = 1 << 20


def refer(tensor: onnx.TensorProto, location: str, *, offset: int, length: int) -> None:
    """Make ``tensor`` a reference, in place."""
    tensor.raw_data = b""  # a tensor without the field is refused
    set_external_data(tensor, location, offset=offset, length=length)
    tensor.ClearField("raw_data")


def is_reference(tensor: onnx.TensorProto, source: Path | None) -> bool:
    """Whether the values have to be read from ``source`` or beside it; without a source references are left alone."""
    return source is not None and bool(uses_external_data(tensor))


def without_reference(tensor: onnx.TensorProto) -> onnx.TensorProto:
    """A copy that says nothing of another place; the values are still missing from it."""
    copy = onnx.TensorProto()
    copy.CopyFrom(tensor)
    copy.ClearField("data_location")
    copy.ClearField("external_data")
    return copy


def with_values(tensor: onnx.TensorProto, source: Path | None) -> onnx.TensorProto:
    """The constant itself, or a copy that holds the values it refers to; see :func:`constant_array`."""
    if not is_reference(tensor, source):
        return tensor
    held = without_reference(tensor)
    held.raw_data = b"".join(map(bytes, constant_bytes(tensor, source)))
    return held


def constant_array(tensor: onnx.TensorProto, source: Path | None) -> NDArray[Any]:
    """Values of a constant.

    Args:
        tensor: of the graph.
        source: the ONNX file whose outline the graph is of; None where it holds its values.

    Raises:
        FileNotFoundError: the file that holds them is not there.
        ValueError: they do not fit the tensor's shape.
    """
    if source is None or not is_reference(tensor, source):
        return onnx.numpy_helper.to_array(tensor)
    place, dtype = _place(tensor), onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    if place.location != source.name or place.length != dtype.itemsize * math.prod(tensor.dims):
        return onnx.numpy_helper.to_array(with_values(tensor, source))
    array = np.empty(tuple(tensor.dims), dtype)
    values = array.reshape(-1).view(np.uint8).data
    with source.open("rb", buffering=0) as stream:
        stream.seek(place.offset or 0)
        while values:
            values = values[_read(stream, values, source) :]
    return array


def constant_size(tensor: onnx.TensorProto, source: Path | None) -> int:
    """Bytes of what :func:`constant_bytes` gives."""
    if source is None or not is_reference(tensor, source):
        return len(tensor.raw_data)
    place = _place(tensor)
    if place.length is not None:
        return int(place.length)
    return int((source.parent / place.location).stat().st_size - (place.offset or 0))


def constant_bytes(tensor: onnx.TensorProto, source: Path | None) -> Iterator[bytes | memoryview]:
    """Values of a constant as they are stored, in parts that are good until the next one; see :func:`constant_array`."""
    if source is None or not is_reference(tensor, source):
        yield tensor.raw_data
        return
    place = _place(tensor)
    if place.location != source.name:
        held = onnx.TensorProto()
        held.CopyFrom(tensor)
        load_external_data_for_tensor(held, str(source.parent))  # with its checks of where the location leads
        yield held.raw_data
        return
    buffer = memoryview(bytearray(_PART_BYTES))
    left = int(place.length or 0)
    with source.open("rb", buffering=0) as stream:
        stream.seek(place.offset or 0)
        while left:
            size = _read(stream, buffer[:left], source)
            yield buffer[:size]
            left -= size


def _read(stream: Any, into: memoryview, source: Path) -> int:
    size: int = stream.readinto(into)
    if not size:
        raise ValueError(f"{source} ends before the values of its constants")
    return size


def _place(tensor: onnx.TensorProto) -> Any:
    """Location, offset and length; numbers or None, which the library's annotations do not say."""
    return ExternalDataInfo(tensor)
