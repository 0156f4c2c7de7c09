"""The bytes of a graph, one constant at a time: those of protobuf, without the whole file in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx

from deploy.graphs.stored_constants import constant_bytes, constant_size, is_reference, without_reference
from deploy.graphs.wire_format import GRAPH, INITIALIZER, RAW_DATA, fields, length_prefix


def encoded_graph(model: onnx.ModelProto, source: Path | None = None) -> Iterator[bytes | memoryview]:
    """What ``model.SerializeToString(deterministic=True)`` would give if the graph held all its values.

    Args:
        model: the graph.
        source: file that it is an outline of; None leaves references as they are.

    Yields:
        Parts that are good until the next one.
    """
    shell = _without_constants(model).SerializeToString(deterministic=True)
    (graph,) = (field for field in fields(shell, 0, len(shell)) if field.number == GRAPH)
    place = _behind(INITIALIZER, shell, graph.content, graph.stop)
    constants = model.graph.initializer
    sizes = [sum(_encoded_sizes(tensor, source)) for tensor in constants]
    prefixes = [length_prefix(INITIALIZER, size) for size in sizes]
    whole = graph.stop - graph.content + sum(sizes) + sum(map(len, prefixes))
    yield shell[: graph.start] + length_prefix(GRAPH, whole) + shell[graph.content : place]
    for tensor, prefix in zip(constants, prefixes, strict=True):
        yield prefix
        head, tail = _around_values(tensor, source)
        yield head
        if is_reference(tensor, source):
            yield from constant_bytes(tensor, source)
        yield tail
    yield shell[place:]


def _encoded_sizes(tensor: onnx.TensorProto, source: Path | None) -> Iterator[int]:
    yield from map(len, _around_values(tensor, source))
    if is_reference(tensor, source):
        yield constant_size(tensor, source)


def _around_values(tensor: onnx.TensorProto, source: Path | None) -> tuple[bytes, bytes]:
    """The bytes of a tensor before and behind the values that a reference stands for; all before where it holds them."""
    if not is_reference(tensor, source):
        return tensor.SerializeToString(deterministic=True), b""
    bare = without_reference(tensor).SerializeToString(deterministic=True)
    place = _behind(RAW_DATA, bare, 0, len(bare))
    return bare[:place] + length_prefix(RAW_DATA, constant_size(tensor, source)), bare[place:]


def _behind(number: int, message: bytes, start: int, stop: int) -> int:
    """Where a field of this number belongs: protobuf writes fields in the order of their numbers."""
    return next((field.start for field in fields(message, start, stop) if field.number > number), stop)


def _without_constants(model: onnx.ModelProto) -> onnx.ModelProto:
    shell = onnx.ModelProto()
    _copy_fields(model, shell, without="graph")
    shell.graph.SetInParent()
    _copy_fields(model.graph, shell.graph, without="initializer")
    return shell


def _copy_fields(message: Any, to: Any, *, without: str) -> None:
    for field, value in message.ListFields():
        if field.name == without:
            continue
        if field.message_type is None and not field.is_repeated:
            setattr(to, field.name, value)
        else:
            getattr(to, field.name).MergeFrom(value)
