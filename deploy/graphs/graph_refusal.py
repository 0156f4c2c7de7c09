"""Why a file or a graph is not taken, in words for its user."""

from __future__ import annotations

import mmap
from pathlib import Path

import onnx

from deploy.graphs.graph_outline import outline
from deploy.graphs.wire_format import EndsEarlyError, fields

_HEAD_BYTES = 512
_FIRST_PRINTABLE = 0x20
_IR_VERSION_TAG = 0x08
"""First byte of what writes ``ModelProto`` in the order of its fields, which is every writer of protobuf."""


def why_unreadable(path: Path, error: Exception) -> str:
    """What ails a file that could not be read, as far as it can be told.

    Args:
        path: a file that is not empty.
        error: what reading it ended in.
    """
    with path.open("rb") as stream:
        head = stream.read(_HEAD_BYTES)
    if all(byte >= _FIRST_PRINTABLE or byte in b"\t\n\r\f" for byte in head):
        return "is not an ONNX model: it is a text"
    try:
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            for _ in fields(content, 0, len(content)):
                pass
    except EndsEarlyError:
        if head[0] == _IR_VERSION_TAG:
            return "is not an ONNX model: it is cut off, as by an interrupted copy or download"
        return "is not an ONNX model: it is no protobuf message"
    except ValueError:
        return "is not an ONNX model: it is no protobuf message"
    try:
        outline(path)
    except Exception:
        return "is not an ONNX model: its protobuf message is damaged, or of another kind"
    return f"cannot be read with its weights: {(str(error).splitlines() or [type(error).__name__])[0]}"


def check_onnx(path: Path, *, name: str) -> None:
    """Ask ONNX's own checker.

    Args:
        path: an ONNX file.
        name: what a message calls it.

    Raises:
        ValueError: it breaks ONNX's rules, for example two nodes that write the same tensor.
    """
    try:
        onnx.checker.check_model(path)
    except onnx.checker.ValidationError as error:
        raise ValueError(f"{name} is not valid ONNX: {str(error).strip().splitlines()[0]}") from error


def refuse_quantized(model: onnx.ModelProto, *, name: str) -> None:
    """Refuse a graph that holds integers already.

    Raises:
        ValueError: names the graph.
    """
    if any(node.op_type in ("QuantizeLinear", "DequantizeLinear") for node in model.graph.node):
        raise ValueError(f"{name} is quantized already; give the float graph it was made from")
