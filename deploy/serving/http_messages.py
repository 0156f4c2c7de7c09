"""Bodies of HTTP inference: JSON, or JSON followed by raw tensors (``Inference-Header-Content-Length``)."""

from __future__ import annotations

from typing import Any

import numpy as np

from deploy.serving.faults import Fault, RequestFaultError, invalid
from deploy.serving.inference_messages import InferAnswer, InferRequest, WantedOutput, read_timeout
from deploy.serving.wire_types import check_tensor_head, datatype_of, from_json, from_raw, to_json, to_raw

try:
    import orjson
except ImportError as error:
    raise ImportError("orjson is not installed: pip install 'quietformer[serve]'") from error

_SHARED_MEMORY = "shared_memory_region"
_MAX_NAME = 1_000
"""Characters of a name or an id."""


def read_json(text: bytes | memoryview) -> dict[str, Any]:
    """A JSON object.

    Raises:
        RequestFaultError: anything else.
    """
    try:
        value = orjson.loads(text)
    except ValueError as error:
        raise invalid(f"the body is not JSON: {error!s:.120}") from error
    if not isinstance(value, dict):
        raise invalid(f"the body is a JSON {type(value).__name__}; expected an object")
    return value


def write_json(value: Any) -> bytes:
    """JSON text; NumPy arrays become lists, numbers that are not finite become null."""
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


def read_request(body: bytes, header_length: str | None) -> InferRequest:
    """A request from the body of ``infer``.

    Args:
        body: decompressed.
        header_length: the header ``Inference-Header-Content-Length``; None where the whole body is JSON.

    Raises:
        RequestFaultError: says what does not fit.
    """
    view = memoryview(body)
    size = len(body) if header_length is None else _header_size(header_length, len(body))
    document = read_json(view[:size])
    raw = view[size:]
    parameters = _table(document, "parameters", "the request")
    inputs: dict[str, np.ndarray] = {}
    given = document.get("inputs")
    if not isinstance(given, list) or not given:
        raise invalid("the request has no list 'inputs'")
    for entry in given:
        name, array, raw = _read_input(entry, raw)
        if name in inputs:
            raise invalid(f"input '{name}' is given twice")
        inputs[name] = array
    if len(raw):
        raise invalid(f"{len(raw)} bytes follow the last binary input")
    binary = _flag(parameters, "binary_data_output", default=False)
    return InferRequest(
        id=_text(document, "id"),
        inputs=inputs,
        outputs=_read_outputs(document.get("outputs"), binary),
        binary_outputs=binary,
        timeout=read_timeout(parameters.get("timeout")),
    )


def _header_size(text: str, body_size: int) -> int:
    size = int(text) if text.isascii() and text.isdigit() and len(text) < 19 else -1
    if size == 0:
        raise invalid("a raw body without a JSON header is not taken; send 'inputs' with 'binary_data_size'")
    if not 0 < size <= body_size:
        raise invalid(f"Inference-Header-Content-Length is '{text:.40}'; the body has {body_size} bytes")
    return size


def _read_input(entry: Any, raw: memoryview) -> tuple[str, np.ndarray, memoryview]:
    if not isinstance(entry, dict):
        raise invalid(f"an input is no JSON object: {entry!r:.40}")
    name = _text(entry, "name", required=True)
    datatype, shape = check_tensor_head(name, entry.get("datatype"), entry.get("shape"))
    parameters = _table(entry, "parameters", f"input '{name}'")
    if _SHARED_MEMORY in parameters:
        raise RequestFaultError(Fault.INVALID, f"input '{name}' is in shared memory, which this server does not offer")
    if "binary_data_size" not in parameters:
        return name, from_json(name, datatype, shape, entry.get("data")), raw
    if "data" in entry:
        raise invalid(f"input '{name}' has both 'data' and 'binary_data_size'")
    size = parameters["binary_data_size"]
    if type(size) is not int or size < 0:
        raise invalid(f"input '{name}' has binary_data_size {size!r:.40}; expected a number of bytes")
    if size > len(raw):
        raise invalid(f"input '{name}' should have {size} bytes; the body ends {size - len(raw)} bytes before")
    return name, from_raw(name, datatype, shape, raw[:size]), raw[size:]


def _read_outputs(given: Any, binary: bool) -> tuple[WantedOutput, ...]:
    if given is None:
        return ()
    if not isinstance(given, list):
        raise invalid("'outputs' is no list")
    wanted: dict[str, WantedOutput] = {}
    for entry in given:
        if not isinstance(entry, dict):
            raise invalid(f"an output is no JSON object: {entry!r:.40}")
        name = _text(entry, "name", required=True)
        parameters = _table(entry, "parameters", f"output '{name}'")
        if _SHARED_MEMORY in parameters or "classification" in parameters:
            raise invalid(f"output '{name}' asks for shared memory or classes, which this server does not offer")
        wanted[name] = WantedOutput(name=name, binary=_flag(parameters, "binary_data", default=binary))
    return tuple(wanted.values())


def _text(table: dict[str, Any], key: str, *, required: bool = False) -> str:
    value = table.get(key, "")
    if not isinstance(value, str) or len(value) > _MAX_NAME or (required and not value):
        raise invalid(f"'{key}' is {value!r:.40}; expected a text of at most {_MAX_NAME} characters")
    return value


def _table(table: dict[str, Any], key: str, owner: str) -> dict[str, Any]:
    value = table.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise invalid(f"'{key}' of {owner} is no JSON object: {value!r:.40}")
    return value


def _flag(parameters: dict[str, Any], key: str, *, default: bool) -> bool:
    value = parameters.get(key, default)
    if not isinstance(value, bool):
        raise invalid(f"parameter '{key}' is {value!r:.40}; expected true or false")
    return value


def write_answer(answer: InferAnswer) -> tuple[bytes, int | None]:
    """The body of an answer, and the length of its JSON where raw tensors follow it.

    Raises:
        RequestFaultError: an output has no JSON form.
    """
    entries, parts = [], []
    for wanted in answer.wanted:
        array = answer.outputs[wanted.name]
        entry: dict[str, Any] = {
            "name": wanted.name,
            "datatype": datatype_of(array.dtype),
            "shape": list(array.shape),
        }
        if wanted.binary:
            parts.append(to_raw(array))
            entry["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            entry["data"] = to_json(array)
        entries.append(entry)
    document = {"model_name": answer.model, "model_version": answer.version, "outputs": entries}
    if answer.id:
        document = {"id": answer.id} | document
    head = write_json(document)
    return (b"".join((head, *parts)), len(head)) if parts else (head, None)
