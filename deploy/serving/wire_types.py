"""Tensors as they travel: names of element types, raw bytes, JSON numbers.

Formats: KServe v2 protocol and Triton's binary tensor data extension. A BYTES tensor is, element by element, a length in
four bytes (little endian) and so many bytes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from deploy.serving.faults import invalid

BYTES = "BYTES"
_NUMPY: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    BYTES: np.dtype(np.object_),
}
_NAMES = {kind: name for name, kind in _NUMPY.items()}
DATATYPES = tuple(_NUMPY)
"""Every element type that a tensor can have."""
MAX_RANK = 8
"""More axes than any model has, and well below what NumPy can hold."""
MAX_ELEMENTS = 1 << 40
"""So that products of sizes stay within machine integers."""


def datatype_of(kind: np.dtype[Any]) -> str:
    """Name on the wire of a NumPy type.

    Raises:
        ValueError: the protocol has no such type.
    """
    if kind not in _NAMES:
        raise ValueError(f"tensors of type {kind} cannot be served; known types are {', '.join(map(str, _NAMES))}")
    return _NAMES[kind]


def config_type(datatype: str) -> str:
    """The name of an element type in Triton's model configuration."""
    return "TYPE_STRING" if datatype == BYTES else f"TYPE_{datatype}"


def check_tensor_head(name: str, datatype: object, shape: object) -> tuple[str, tuple[int, ...]]:
    """Element type and shape of a tensor as a client states them.

    Raises:
        RequestFaultError: an unknown type, or a shape that is not a short list of non-negative integers.
    """
    if not isinstance(datatype, str) or datatype not in _NUMPY:
        raise invalid(f"input '{name}' has datatype {datatype!r:.40}; expected one of {', '.join(DATATYPES)}")
    if (
        not isinstance(shape, Sequence)
        or isinstance(shape, str | bytes)
        or len(shape) > MAX_RANK
        or not all(type(size) is int and size >= 0 for size in shape)
        or math.prod(shape) > MAX_ELEMENTS
    ):
        raise invalid(f"input '{name}' has shape {shape!r:.80}; expected a list of at most {MAX_RANK} sizes")
    return datatype, tuple(shape)


def from_raw(name: str, datatype: str, shape: tuple[int, ...], data: bytes | memoryview) -> np.ndarray:
    """A tensor of raw bytes; numbers are not copied.

    Raises:
        RequestFaultError: more or fewer bytes than the shape needs.
    """
    if datatype == BYTES:
        return _strings_from_raw(name, shape, data)
    kind = _NUMPY[datatype]
    needed = math.prod(shape) * kind.itemsize
    if len(data) != needed:
        raise invalid(
            f"input '{name}' has {len(data)} bytes; shape {list(shape)} of {datatype} needs {needed} "
            f"({abs(needed - len(data))} {'more' if needed > len(data) else 'fewer'})"
        )
    if datatype == "BOOL":
        return np.frombuffer(data, np.uint8).astype(np.bool_).reshape(shape)
    return np.frombuffer(data, kind.newbyteorder("<")).astype(kind, copy=False).reshape(shape)


def _strings_from_raw(name: str, shape: tuple[int, ...], data: bytes | memoryview) -> np.ndarray:
    elements: list[bytes] = []
    view, place, wanted = memoryview(data), 0, math.prod(shape)
    while place < len(view):
        if len(elements) == wanted:
            raise invalid(f"input '{name}' holds more than the {wanted} strings of shape {list(shape)}")
        if place + 4 > len(view):
            raise invalid(f"input '{name}' ends within the length of string {len(elements)}")
        (size,) = struct.unpack_from("<I", view, place)
        place += 4
        if place + size > len(view):
            raise invalid(f"input '{name}' ends within string {len(elements)}, which should have {size} bytes")
        elements.append(bytes(view[place : place + size]))
        place += size
    return strings(name, shape, elements)


def strings(name: str, shape: tuple[int, ...], elements: Sequence[bytes]) -> np.ndarray:
    """A BYTES tensor of its elements.

    Raises:
        RequestFaultError: more or fewer of them than the shape needs.
    """
    if len(elements) != math.prod(shape):
        raise invalid(f"input '{name}' holds {len(elements)} strings; shape {list(shape)} needs {math.prod(shape)}")
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    return array.reshape(shape)


def to_raw(array: np.ndarray) -> bytes:
    """The bytes of a tensor, strings with their lengths."""
    if array.dtype == np.object_:
        return b"".join(struct.pack("<I", len(text)) + text for text in array.ravel())
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()


def from_json(name: str, datatype: str, shape: tuple[int, ...], data: object) -> np.ndarray:
    """A tensor of JSON values, flat or nested, in row-major order.

    Raises:
        RequestFaultError: not a list, values of another kind or out of the type's range, or not so many of them.
    """
    if not isinstance(data, list):
        raise invalid(f"input '{name}' has data that is no list: {data!r:.40}")
    if datatype == BYTES:
        return strings(name, shape, _text_elements(name, data))
    if datatype == "FP16":
        raise invalid(f"input '{name}' is FP16, which has no JSON form; send it as binary data")
    try:
        array = np.asarray(data)
    except (ValueError, OverflowError, RecursionError) as error:  # ragged, or deeper than arrays can be
        raise invalid(f"input '{name}' has data of uneven or too deep nesting") from error
    allowed = {"b": "b", "i": "iu", "u": "iu", "f": "iuf"}[_NUMPY[datatype].kind]
    if array.size and array.dtype.kind not in allowed:
        raise invalid(f"input '{name}' has data that is not {datatype}")
    return numbers(name, datatype, shape, array)


def numbers(name: str, datatype: str, shape: tuple[int, ...], values: np.ndarray) -> np.ndarray:
    """A tensor of its numbers, in row-major order, whatever type they came in.

    Raises:
        RequestFaultError: more or fewer of them than the shape needs, or integers out of the type's range.
    """
    if values.size != math.prod(shape):
        raise invalid(f"input '{name}' has {values.size} values; shape {list(shape)} needs {math.prod(shape)}")
    kind = _NUMPY[datatype]
    if kind.kind in "iu" and values.size:
        bounds = np.iinfo(kind)
        if int(values.min()) < bounds.min or int(values.max()) > bounds.max:
            raise invalid(f"input '{name}' has values outside of {datatype}")
    with np.errstate(over="ignore"):  # what is too large for the type becomes infinite, which the models refuse
        return values.astype(kind, copy=False).reshape(shape)


def _text_elements(name: str, data: list[Any]) -> list[bytes]:
    found: list[bytes] = []
    stack: list[Any] = [data]
    while stack:
        value = stack.pop()
        if isinstance(value, list):
            stack.extend(reversed(value))
        elif isinstance(value, str):
            found.append(value.encode())
        else:
            raise invalid(f"input '{name}' has data that is not text: {value!r:.40}")
    return found


def to_json(array: np.ndarray) -> Any:
    """What a JSON writer that knows NumPy takes: a flat array, or a list of texts.

    Raises:
        RequestFaultError: strings that are not UTF-8.
    """
    if array.dtype == np.object_:
        try:
            return [text.decode() for text in array.ravel()]
        except UnicodeDecodeError as error:
            raise invalid("an output holds bytes that are not UTF-8; ask for it as binary data") from error
    flat = np.ascontiguousarray(array).ravel()
    return flat.astype(np.float32) if array.dtype == np.float16 else flat
