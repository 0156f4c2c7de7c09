"""Protobuf's wire format as far as an ONNX file is read and written in parts: where each field of a message lies.

Format: protobuf's encoding guide, "Message Structure". A field is a varint tag ``number << 3 | type`` and then a varint (0),
8 bytes (1), a varint length with so many bytes (2), or 4 bytes (5).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from mmap import mmap

Buffer = bytes | mmap
GRAPH, INITIALIZER, RAW_DATA = 7, 5, 9
"""Numbers of ``ModelProto.graph``, ``GraphProto.initializer`` and ``TensorProto.raw_data`` (onnx.proto)."""
_LENGTH_DELIMITED = 2
_FIXED = {1: 8, 5: 4}
_VARINT_BYTES = 10


class EndsEarlyError(ValueError):
    """A message goes on behind the last byte."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message, by its places in the buffer."""

    number: int
    start: int
    """Of its tag."""
    content: int
    """Of its value, behind tag and length."""
    stop: int


def fields(buffer: Buffer, start: int, stop: int) -> Iterator[Field]:
    """The fields of the message in ``buffer[start:stop]``, in order.

    Raises:
        EndsEarlyError: these bytes are the start of a message, as far as they go.
        ValueError: these bytes are no message.
    """
    place = start
    while place < stop:
        tag, content = _varint(buffer, place, stop)
        kind = tag & 7
        if kind == _LENGTH_DELIMITED:
            size, content = _varint(buffer, content, stop)
            end = content + size
        elif kind == 0:
            end = _varint(buffer, content, stop)[1]
        elif kind in _FIXED:
            end = content + _FIXED[kind]
        else:
            raise ValueError(f"not a protobuf message: a field of type {kind} at byte {place}")
        if end > stop:
            raise EndsEarlyError(f"not a whole protobuf message: a field at byte {place} ends behind it")
        yield Field(tag >> 3, place, content, end)
        place = end


def length_prefix(number: int, size: int) -> bytes:
    """Tag and length of a field of ``size`` bytes."""
    return _encoded(number << 3 | _LENGTH_DELIMITED) + _encoded(size)


def _varint(buffer: Buffer, start: int, stop: int) -> tuple[int, int]:
    """A number and the place behind it."""
    value = 0
    for place in range(start, min(start + _VARINT_BYTES, stop)):
        byte = buffer[place]
        value |= (byte & 0x7F) << 7 * (place - start)
        if byte < 0x80:
            return value, place + 1
    if start + _VARINT_BYTES > stop:
        raise EndsEarlyError(f"not a whole protobuf message: the number at byte {start} ends behind it")
    raise ValueError(f"not a protobuf message: no number at byte {start}")


def _encoded(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
