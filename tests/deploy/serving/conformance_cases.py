"""Requests over HTTP and what a KServe v2 server answers, as data: the same for ours and for Triton.

The model is the small encoder of these tests: three INT64 inputs [-1, -1] and one FP32 output [-1, -1, 32], batches of at
most 8 rows, vocabulary of 50, 24 positions.
"""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

MODEL = "encoder"
OUTPUT = "last_hidden_state"
MAX_BATCH, WIDTH, VOCABULARY, POSITIONS = 8, 32, 50, 24
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
MODEL_PATH = f"/v2/models/{MODEL}"
INFER = f"{MODEL_PATH}/infer"
LENGTH = "Inference-Header-Content-Length"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One request."""

    name: str
    path: str
    status: int
    """What our server answers."""
    method: str = "POST"
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    triton_status: int | None = None
    """What Triton answers, where it is something else."""
    only_ours: bool = False
    """Triton does not look at this."""
    check: Callable[[dict[str, Any]], bool] | None = None
    """Of the answer's JSON."""


def json_input(name: str, *, rows: int = 2, length: int = 5, value: Any = 1, **changes: Any) -> dict[str, Any]:
    """An input as JSON."""
    return {
        "name": name, "datatype": "INT64", "shape": [rows, length], "data": [value] * (rows * length)
    } | changes  # fmt: skip


def json_inputs(**changes: Any) -> list[dict[str, Any]]:
    """All three."""
    return [json_input(name, **changes) for name in INPUTS[:2]] + [json_input(INPUTS[2], **({"value": 0} | changes))]


def infer_body(inputs: list[dict[str, Any]] | None = None, **rest: Any) -> bytes:
    """A JSON request."""
    return json.dumps({"inputs": json_inputs() if inputs is None else inputs} | rest).encode()


def binary_request(
    *, rows: int = 2, length: int = 5, cut: int = 0, extra: bytes = b"", stated: int | None = None, **rest: Any
) -> tuple[bytes, int]:
    """A request with raw tensors, and the length of its JSON.

    Args:
        rows: of each tensor.
        length: of each tensor.
        cut: bytes missing at the end.
        extra: bytes added at the end.
        stated: ``binary_data_size`` of each tensor; the true one by default.
        rest: further keys of the JSON.
    """
    size = rows * length * 8
    inputs = [
        {"name": name, "datatype": "INT64", "shape": [rows, length],
         "parameters": {"binary_data_size": size if stated is None else stated}}
        for name in INPUTS
    ]  # fmt: skip
    head = json.dumps({"inputs": inputs} | rest).encode()
    tensors = struct.pack(f"<{rows * length}q", *([1] * rows * length)) * 2 + bytes(size)
    body = head + tensors
    return body[: len(body) - cut] + extra, len(head)


def _binary(
    name: str, status: int, *, stated_head: Any = None, triton_status: int | None = None, **changes: Any
) -> Case:
    body, head = binary_request(**changes)
    headers = {LENGTH: str(head if stated_head is None else stated_head), "Content-Type": "application/octet-stream"}
    return Case(
        name=name, path=INFER, status=status, triton_status=triton_status, body=body, headers=headers
    )  # fmt: skip


def _bad_input(name: str, status: int = 400, *, triton_status: int | None = None, **changes: Any) -> Case:
    inputs = [json_input("input_ids", **changes), *json_inputs()[1:]]
    return Case(name=name, path=INFER, status=status, triton_status=triton_status, body=infer_body(inputs))


def _outputs(*outputs: Any) -> bytes:
    return infer_body(outputs=list(outputs))


def _has_shape(shape: list[int]) -> Callable[[dict[str, Any]], bool]:
    return lambda answer: answer["outputs"][0]["shape"] == shape


OPERATIONS = (
    Case(name="live", method="GET", path="/v2/health/live", status=200),
    Case(name="ready", method="GET", path="/v2/health/ready", status=200),
    Case(name="model ready", method="GET", path=f"{MODEL_PATH}/ready", status=200),
    Case(name="model version ready", method="GET", path=f"{MODEL_PATH}/versions/1/ready", status=200),
    Case(name="unknown model is not ready", method="GET", path="/v2/models/none/ready", status=400),
    Case(name="unknown version is not ready", method="GET", path=f"{MODEL_PATH}/versions/9/ready", status=400),
    Case(name="server metadata", method="GET", path="/v2", status=200,
         check=lambda answer: "binary_tensor_data" in answer["extensions"]),
    Case(name="metadata", method="GET", path=MODEL_PATH, status=200,
         check=lambda answer: sorted(entry["name"] for entry in answer["inputs"]) == sorted(INPUTS)
         and answer["outputs"][0] == {"name": OUTPUT, "datatype": "FP32", "shape": [-1, -1, WIDTH]}),
    Case(name="metadata of a version", method="GET", path=f"{MODEL_PATH}/versions/1", status=200,
         check=lambda answer: answer["versions"] == ["1"]),
    Case(name="metadata of an unknown model", method="GET", path="/v2/models/none", status=404),
    Case(name="metadata of an unknown version", method="GET", path=f"{MODEL_PATH}/versions/9", status=404),
    Case(name="config", method="GET", path=f"{MODEL_PATH}/config", status=200,
         check=lambda answer: answer["max_batch_size"] == MAX_BATCH),
    Case(name="config of an unknown model", method="GET", path="/v2/models/none/config", status=404),
    Case(name="statistics", method="GET", path=f"{MODEL_PATH}/stats", status=200,
         check=lambda answer: answer["model_stats"][0]["name"] == MODEL),
    Case(name="statistics of all", method="GET", path="/v2/models/stats", status=200,
         check=lambda answer: MODEL in [entry["name"] for entry in answer["model_stats"]]),
    Case(name="statistics of an unknown model", method="GET", path="/v2/models/none/stats", status=400),
    Case(name="repository index", path="/v2/repository/index", status=200, body=b"{}"),
    Case(name="repository index of the ready", path="/v2/repository/index", status=200, body=b'{"ready": true}'),
    Case(name="nothing there", method="GET", path="/v3/nothing", status=404),
    Case(name="unknown verb of a model", path=f"{MODEL_PATH}/explain", status=404),
)  # fmt: skip

GOOD = (
    Case(name="JSON", path=INFER, body=infer_body(), status=200, check=_has_shape([2, 5, WIDTH])),
    Case(name="JSON with a version", path=f"{MODEL_PATH}/versions/1/infer", body=infer_body(), status=200),
    Case(name="nested JSON", path=INFER, status=200, check=_has_shape([2, 3, WIDTH]),
         body=infer_body([json_input(name, length=3, data=[[1, 1, 1], [1, 1, 1]]) for name in INPUTS])),
    Case(name="the id comes back", path=INFER, body=infer_body(id="abc-7"), status=200,
         check=lambda answer: answer["id"] == "abc-7"),
    Case(name="a named output", path=INFER, body=_outputs({"name": OUTPUT}), status=200,
         check=lambda answer: [entry["name"] for entry in answer["outputs"]] == [OUTPUT]),
    Case(name="parameters that nobody knows", path=INFER, body=infer_body(parameters={"colour": "red", "n": 3}),
         status=200),
    Case(name="one row", path=INFER, body=infer_body(json_inputs(rows=1)), status=200, check=_has_shape([1, 5, WIDTH])),
    Case(name="as many rows as allowed", path=INFER, body=infer_body(json_inputs(rows=MAX_BATCH)), status=200),
    Case(name="as many tokens as allowed", path=INFER, body=infer_body(json_inputs(length=POSITIONS)), status=200),
    Case(name="gzip", path=INFER, body=gzip.compress(infer_body()), headers={"Content-Encoding": "gzip"}, status=200),
    Case(name="deflate", path=INFER, body=zlib.compress(infer_body()), headers={"Content-Encoding": "deflate"},
         status=200),
    _binary("binary", 200),
    _binary("binary with an id", 200, id="abc"),
    _binary("binary of a length that needs no padding", 200, length=8),
    _binary("binary in, JSON out", 200, outputs=[{"name": OUTPUT, "parameters": {"binary_data": False}}]),
    _binary("binary in and out", 200, parameters={"binary_data_output": True}),
)  # fmt: skip

BAD = (
    Case(name="unknown model", path="/v2/models/none/infer", body=infer_body(), status=404),
    Case(name="unknown version", path=f"{MODEL_PATH}/versions/9/infer", body=infer_body(), status=404),
    Case(name="GET infer", method="GET", path=INFER, status=405),
    Case(name="PUT infer", method="PUT", path=INFER, body=infer_body(), status=405),
    Case(name="empty body", path=INFER, status=400),
    Case(name="malformed JSON", path=INFER, body=b'{"inputs": [', status=400, triton_status=500),
    Case(name="JSON that is a list", path=INFER, body=b"[1, 2]", status=400, triton_status=500),
    Case(name="no inputs", path=INFER, body=b"{}", status=400, triton_status=500),
    Case(name="inputs that are no list", path=INFER, body=b'{"inputs": 3}', status=400, triton_status=500),
    Case(name="an input that is no object", path=INFER, body=b'{"inputs": [3]}', status=400),
    _bad_input("wrong type", datatype="INT32"),
    _bad_input("unknown type", datatype="INT65"),
    _bad_input("type missing", datatype=None, triton_status=500),
    _bad_input("wrong rank", shape=[10]),
    _bad_input("rank too high", shape=[2, 5, 1]),
    _bad_input("shape that disagrees with the other inputs", rows=2, length=4, triton_status=500),
    _bad_input("negative size", shape=[-2, -5], triton_status=500),
    _bad_input("shape that is text", shape="2x5", triton_status=500),
    _bad_input("size that is a fraction", shape=[2.5, 4], triton_status=500),
    _bad_input("too few values", data=[1] * 9, triton_status=500),
    _bad_input("too many values", data=[1] * 11, triton_status=500),
    _bad_input("ragged values", data=[[1] * 5, [1] * 4], triton_status=500),
    _bad_input("values that are text", value="one", triton_status=500),
    _bad_input("values that are fractions", value=1.5, triton_status=500),
    _bad_input("values missing", data=None, triton_status=500),
    Case(name="unknown input", path=INFER, body=infer_body([*json_inputs(), json_input("more")]), status=400),
    Case(name="input under another name", path=INFER, body=infer_body([*json_inputs()[:2], json_input("type_ids")]),
         status=400),
    Case(name="missing input", path=INFER, body=infer_body(json_inputs()[:2]), status=400),
    Case(name="duplicate input", path=INFER, body=infer_body([*json_inputs(), json_inputs()[0]]), status=400),
    Case(name="input without a name", path=INFER,
         body=infer_body([*json_inputs()[:2], {"datatype": "INT64", "shape": [1], "data": [1]}]), status=400,
         triton_status=500),
    Case(name="batches that disagree", path=INFER, status=400,
         body=infer_body([json_input("input_ids", rows=3), *json_inputs()[1:]])),
    Case(name="batch of none", path=INFER, body=infer_body(json_inputs(rows=0)), status=400),
    Case(name="batch above the limit", path=INFER, body=infer_body(json_inputs(rows=MAX_BATCH + 1)), status=400),
    Case(name="unknown output", path=INFER, body=_outputs({"name": "logits"}), status=400),
    Case(name="output without a name", path=INFER, body=_outputs({}), status=400, triton_status=500),
    Case(name="id outside of the vocabulary", path=INFER, only_ours=True, status=400,
         body=infer_body([json_input("input_ids", value=VOCABULARY), *json_inputs()[1:]])),
    Case(name="negative id", path=INFER, only_ours=True, status=400,
         body=infer_body([json_input("input_ids", value=-1), *json_inputs()[1:]])),
    Case(name="more tokens than positions", path=INFER, only_ours=True, status=400,
         body=infer_body(json_inputs(length=POSITIONS + 1))),
    Case(name="mask of twos", path=INFER, only_ours=True, status=400,
         body=infer_body([json_inputs()[0], json_input("attention_mask", value=2), json_inputs()[2]])),
    Case(name="content that is not gzip", path=INFER, body=infer_body(), headers={"Content-Encoding": "gzip"},
         status=400),
    Case(name="unknown compression", path=INFER, body=infer_body(), headers={"Content-Encoding": "snappy"}, status=501),
    _binary("binary that ends early", 400, cut=7),
    _binary("binary without its last tensor", 400, cut=80),
    _binary("bytes after the last tensor", 400, extra=b"12345678"),
    _binary("binary size that the shape contradicts", 400, stated=72),
    _binary("negative binary size", 400, stated=-8, triton_status=500),
    _binary("header length beyond the body", 400, stated_head=10**6),
    _binary("header length too short", 400, stated_head=20, triton_status=500),
    _binary("header length that is no number", 400, stated_head="many"),
    _binary("negative header length", 400, stated_head=-5),
    Case(name="loading where it is not allowed", path=f"/v2/repository/models/{MODEL}/load", status=503),
    Case(name="unloading where it is not allowed", path=f"/v2/repository/models/{MODEL}/unload", status=503),
    Case(name="oversized body", path=INFER, body=b" " * (65 << 20), status=413, triton_status=500),
)  # fmt: skip

CASES = (*OPERATIONS, *GOOD, *BAD)
