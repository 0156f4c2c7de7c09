"""Protobuf messages of inference as requests and answers, with the classes that tritonclient ships."""

from __future__ import annotations

from typing import Any

import numpy as np

from deploy.serving.faults import invalid
from deploy.serving.inference_messages import InferAnswer, InferRequest, WantedOutput, read_timeout
from deploy.serving.wire_types import BYTES, check_tensor_head, datatype_of, from_raw, numbers, strings, to_raw

try:
    from tritonclient.grpc import service_pb2
except (ImportError, RuntimeError) as error:  # tritonclient wraps the former into the latter
    raise ImportError("tritonclient or grpcio is not installed: pip install 'quietformer[serve]'") from error

_CONTENTS = {
    "BOOL": "bool_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    BYTES: "bytes_contents",
}
"""Field of typed values by element type."""


def read_message(message: Any) -> InferRequest:
    """A request from a ``ModelInferRequest``.

    Raises:
        RequestFaultError: says what does not fit.
    """
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise invalid(f"there are {len(message.inputs)} inputs and {len(raw)} raw contents; expected one for each")
    inputs: dict[str, np.ndarray] = {}
    for place, entry in enumerate(message.inputs):
        if entry.name in inputs:
            raise invalid(f"input '{entry.name:.80}' is given twice")
        _refuse_shared_memory(entry, f"input '{entry.name:.80}'")
        datatype, shape = check_tensor_head(entry.name, entry.datatype, list(entry.shape))
        if not raw:
            inputs[entry.name] = _typed_values(entry, datatype, shape)
        elif entry.HasField("contents"):
            raise invalid(f"input '{entry.name:.80}' has both typed and raw contents")
        else:
            inputs[entry.name] = from_raw(entry.name, datatype, shape, raw[place])
    wanted: dict[str, WantedOutput] = {}
    for output in message.outputs:
        _refuse_shared_memory(output, f"output '{output.name:.80}'")
        wanted[output.name] = WantedOutput(name=output.name, binary=True)
    return InferRequest(
        id=message.id,
        inputs=inputs,
        outputs=tuple(wanted.values()),
        binary_outputs=True,
        timeout=_timeout(message.parameters),
    )


def _refuse_shared_memory(entry: Any, what: str) -> None:
    if "shared_memory_region" in entry.parameters or "classification" in entry.parameters:
        raise invalid(f"{what} asks for shared memory or classes, which this server does not offer")


def _timeout(parameters: Any) -> float | None:
    if "timeout" not in parameters:
        return None
    value = parameters["timeout"]
    return read_timeout(getattr(value, value.WhichOneof("parameter_choice") or "int64_param"))


def _typed_values(entry: Any, datatype: str, shape: tuple[int, ...]) -> np.ndarray:
    if datatype not in _CONTENTS:
        raise invalid(f"input '{entry.name:.80}' is {datatype}, which has no typed contents; send it as raw contents")
    values = getattr(entry.contents, _CONTENTS[datatype])
    if datatype == BYTES:
        return strings(entry.name, shape, list(values))
    return numbers(f"{entry.name:.80}", datatype, shape, np.array(values))


def write_message(answer: InferAnswer) -> Any:
    """The ``ModelInferResponse`` of an answer; every output is raw."""
    message = service_pb2.ModelInferResponse(model_name=answer.model, model_version=answer.version, id=answer.id)
    for wanted in answer.wanted:
        array = answer.outputs[wanted.name]
        message.outputs.add(name=wanted.name, datatype=datatype_of(array.dtype), shape=array.shape)
        message.raw_output_contents.append(to_raw(array))
    return message
