"""Clients that go while their request waits: nobody computes it."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2, service_pb2_grpc

from deploy.serving.http_request import ClientGoneError, HttpRequest
from tests.deploy.encoder_graph import feeds
from tests.deploy.serving.conformance_cases import INFER, MAX_BATCH, MODEL, infer_body, json_inputs
from tests.deploy.serving.served_model import Server, running, wait_until


@pytest.fixture(scope="module")
def patient(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that waits half a minute for a batch of MAX_BATCH rows, so that everything else waits in its queue."""
    log = tmp_path_factory.mktemp("log") / "server.log"
    with running(folder, "--queue-delay", "30", "--queue-timeout", "60", "--grpc-port", "0", log=log) as started:
        yield started


def counts(server: Server, model: str = MODEL) -> dict[str, float]:
    """Waiting requests, given up requests and runs of a model."""
    text = server.target.ask("GET", "/metrics")[2].decode()

    def value(name: str, more: str = "") -> float:
        (line,) = [
            line for line in text.splitlines() if line.startswith(f'{name}{{model="{model}",version="1"{more}}} ')
        ]
        return float(line.rpartition(" ")[2])

    return {
        "waiting": value("nv_inference_pending_request_count"),
        "given up": value("nv_inference_request_failure", ',reason="CANCELED"'),
        "runs": value("nv_inference_exec_count"),
    }


def check_that_it_leaves(server: Server, leave: Callable[[], object], model: str = MODEL) -> None:
    """A request waits; ``leave`` makes its client go; it is counted as given up, and the next batch is without it."""
    before = counts(server, model)
    wait_until(lambda: counts(server)["waiting"] == 1)
    leave()
    wait_until(lambda: counts(server)["waiting"] == 0)
    wait_until(lambda: counts(server, model)["given up"] == before["given up"] + 1)
    status, _, body = server.target.ask("POST", INFER, infer_body(json_inputs(rows=MAX_BATCH)))
    assert (status, json.loads(body)["outputs"][0]["shape"][0]) == (200, MAX_BATCH)
    if model == MODEL:
        assert counts(server)["runs"] == before["runs"] + 1
    assert "Traceback" not in server.log.read_text()


def sent(server: Server, path: str, body: bytes) -> socket.socket:
    host, _, port = server.target.address.partition(":")
    connection = socket.create_connection((host, int(port)))
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


def reset(connection: socket.socket) -> None:
    """Close without the usual farewell, as a client that is killed or times out may."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@pytest.mark.parametrize("close", [socket.socket.close, reset])
@pytest.mark.parametrize("padding", [0, 1 << 20])  # the server pauses a connection that sends a large body
def test_an_http_client_that_disconnects_takes_its_request_along(
    patient: Server, close: Callable[[socket.socket], None], padding: int
) -> None:
    connection = sent(patient, INFER, infer_body() + b" " * padding)
    check_that_it_leaves(patient, lambda: close(connection))


def test_texts_of_a_client_that_disconnects_leave_the_graphs_queue(patient: Server) -> None:
    tensor = {"name": "TEXT", "datatype": "BYTES", "shape": [1, 1], "data": ["w1 w2"]}
    connection = sent(patient, f"/v2/models/{MODEL}-text/infer", json.dumps({"inputs": [tensor]}).encode())
    check_that_it_leaves(patient, connection.close, f"{MODEL}-text")


def grpc_inputs() -> list[triton.InferInput]:
    made = []
    for name, array in feeds(batch=1, length=5, seed=0).items():
        made.append(triton.InferInput(name, list(array.shape), "INT64"))
        made[-1].set_data_from_numpy(np.asarray(array))
    return made


def test_a_grpc_call_that_is_cancelled_leaves_the_queue(patient: Server) -> None:
    with triton.InferenceServerClient(str(patient.target.grpc)) as client:
        call = client.async_infer(MODEL, grpc_inputs(), callback=lambda result, error: None)
        check_that_it_leaves(patient, call.cancel)


def test_a_grpc_call_whose_deadline_passes_leaves_the_queue(patient: Server) -> None:
    with triton.InferenceServerClient(str(patient.target.grpc)) as client:
        client.async_infer(MODEL, grpc_inputs(), callback=lambda result, error: None, client_timeout=1.0)
        check_that_it_leaves(patient, lambda: None)


def test_a_grpc_stream_that_is_cancelled_leaves_the_queue(patient: Server) -> None:
    with grpc.insecure_channel(str(patient.target.grpc)) as channel:
        request = service_pb2.ModelInferRequest(model_name=MODEL)
        for name, array in feeds(batch=1, length=5, seed=0).items():
            request.inputs.add(name=name, datatype="INT64", shape=array.shape)
            request.raw_input_contents.append(array.tobytes())
        stream = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(iter([request]))
        check_that_it_leaves(patient, stream.cancel)


def request_with(messages: list[dict[str, Any]]) -> HttpRequest:
    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop(0)
        await asyncio.sleep(60)
        raise AssertionError

    return HttpRequest({"method": "POST", "path": "/", "headers": []}, receive)


def test_work_that_ends_before_its_client_goes_gives_its_result() -> None:
    async def work() -> int:
        await asyncio.sleep(0.01)
        return 5

    assert asyncio.run(request_with([]).while_connected(work())) == 5


def test_a_client_that_goes_cancels_the_work_and_nothing_else() -> None:
    async def story() -> None:
        ended = []

        async def work() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                ended.append("work")

        request = request_with([{"type": "http.request", "body": b""}, {"type": "http.disconnect"}])
        with pytest.raises(ClientGoneError):
            await request.while_connected(work())
        assert ended == ["work"]
        await asyncio.sleep(0)  # this task itself goes on

    asyncio.run(story())


def test_a_server_that_ends_cancels_the_request_as_such() -> None:
    async def story() -> None:
        task = asyncio.create_task(request_with([]).while_connected(asyncio.sleep(60)))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(story())
