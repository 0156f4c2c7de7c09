"""An ONNX file without its weights: each large constant is a reference to where its values lie in the file.

Reading an outline takes milliseconds and little memory however many weights a model has;
:mod:`deploy.graphs.stored_constants` reads the values.
"""

from __future__ import annotations

import mmap
from pathlib import Path

import onnx

from deploy.graphs.stored_constants import refer
from deploy.graphs.wire_format import GRAPH, INITIALIZER, RAW_DATA, Field, fields, length_prefix

_SMALLEST_LEFT_OUT = 1 << 16
"""Bytes; smaller constants, and with them all that tell one pattern from another, stay in the outline."""


def outline(path: Path) -> onnx.ModelProto:
    """The graph of an ONNX file, with references to it for large initializers.

    Raises:
        ValueError: not a protobuf message.
        google.protobuf.message.DecodeError: a message, but not an ONNX model.
    """
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        parts: list[bytes] = []
        left_out: dict[int, Field] = {}
        number = 0
        for field in fields(content, 0, len(content)):
            if field.number != GRAPH:
                parts.append(content[field.start : field.stop])
                continue
            inner: list[bytes] = []
            for part in fields(content, field.content, field.stop):
                if part.number != INITIALIZER:
                    inner.append(content[part.start : part.stop])
                    continue
                if (values := _large_values(content, part)) is not None:
                    left_out[number] = values
                    head, tail = content[part.content : values.start], content[values.stop : part.stop]
                    inner += [length_prefix(INITIALIZER, len(head) + len(tail)), head, tail]
                else:
                    inner.append(content[part.start : part.stop])
                number += 1
            parts += [length_prefix(GRAPH, sum(map(len, inner))), *inner]
    model: onnx.ModelProto = onnx.ModelProto.FromString(b"".join(parts))
    for number, values in left_out.items():
        tensor = model.graph.initializer[number]
        refer(tensor, path.name, offset=values.content, length=values.stop - values.content)
    return model


def _large_values(content: mmap.mmap, tensor: Field) -> Field | None:
    """The field with the values of an initializer, where they are to be left out."""
    if tensor.stop - tensor.content < _SMALLEST_LEFT_OUT:
        return None
    found = [part for part in fields(content, tensor.content, tensor.stop) if part.number == RAW_DATA]
    return found[0] if len(found) == 1 and found[0].stop - found[0].content >= _SMALLEST_LEFT_OUT else None
