"""Start, drain, reload, and clients that misbehave."""

from __future__ import annotations

import json
import resource
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton
from typer.testing import CliRunner

from quietformer.cli import app
from tests.deploy.encoder_graph import feeds
from tests.deploy.serving.conformance_cases import INFER, INPUTS, MODEL, OUTPUT, VOCABULARY, infer_body, json_input
from tests.deploy.serving.served_model import Server, Target, running, start, wait_until, write_model


def answers(target: Target) -> bool:
    return target.ask("POST", INFER, infer_body())[0] == 200


class Load:
    """Clients with a connection each that ask without a pause and keep what they got."""

    def __init__(self, target: Target, *, clients: int, arrays: list[dict[str, np.ndarray]] | None = None) -> None:
        self._target, self._stop = target, threading.Event()
        self._arrays = arrays or [feeds(batch=1, length=3 + number % 5, seed=number) for number in range(clients)]
        self.statuses: Counter[str] = Counter()
        self.versions: Counter[str] = Counter()
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(clients)]

    def _ask(self, number: int) -> None:
        client = triton.InferenceServerClient(self._target.address, connection_timeout=30, network_timeout=30)
        tensors = []
        for name, array in self._arrays[number].items():
            tensors.append(triton.InferInput(name, list(array.shape), "INT64"))
            tensors[-1].set_data_from_numpy(array)
        while not self._stop.is_set():
            try:
                answer = client.infer(MODEL, tensors)
                self.versions[answer.get_response()["model_version"]] += 1
                assert answer.as_numpy(OUTPUT).shape[1] == self._arrays[number]["input_ids"].shape[1]
                status = "200"
            except Exception as error:  # whatever a client can meet counts
                status = str(getattr(error, "status", lambda: None)() or type(error).__name__)
            self.statuses[status] += 1
        client.close()

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def test_sigterm_under_load_costs_no_client_an_error(folder: Path, tmp_path: Path) -> None:
    with running(folder, log=tmp_path / "log") as server:
        with Load(server.target, clients=6) as load:
            wait_until(lambda: load.statuses["200"] > 50)
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: server.target.ask("GET", "/v2/health/ready")[0] == 400)
            assert server.target.ask("GET", f"/v2/models/{MODEL}/ready")[0] == 400
            assert server.target.ask("GET", "/v2/health/live")[0] == 200
            before = load.statuses["200"]
            wait_until(lambda: load.statuses["200"] > before + 50)
        assert set(load.statuses) == {"200"}
        assert server.process.wait(timeout=15) == 0


def test_sigint_ends_at_once_and_a_killed_server_starts_again(folder: Path, tmp_path: Path) -> None:
    with running(folder, log=tmp_path / "log") as server:
        assert answers(server.target)
        server.process.kill()
        server.process.wait()
    with running(folder, log=tmp_path / "log") as server:
        assert answers(server.target)
        started = time.monotonic()
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(timeout=15) == 0
        assert time.monotonic() - started < 5


def test_a_changed_artifact_takes_over_without_dropping_a_request(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "bundle")
    with running(folder, log=tmp_path / "log") as server:
        with Load(server.target, clients=4) as load:
            wait_until(lambda: load.versions["1"] > 20)
            write_model(folder, seed=1)
            server.process.send_signal(signal.SIGHUP)
            wait_until(lambda: load.versions["2"] > 20)
        assert set(load.statuses) == {"200"}
        assert set(load.versions) == {"1", "2"}
        assert server.target.ask("GET", f"/v2/models/{MODEL}/versions/1/ready")[0] == 400
        (folder / "model.onnx").write_bytes(b"damaged")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "not loaded again" in server.log.read_text())
        assert answers(server.target)


def test_clients_load_and_unload_where_that_is_allowed(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "bundle")
    with (
        running(folder, "--allow-model-control", log=tmp_path / "log") as server,
        triton.InferenceServerClient(server.target.address) as client,
    ):
        client.load_model(MODEL)
        assert client.is_model_ready(MODEL, "1")  # nothing changed
        client.unload_model(MODEL)
        assert not client.is_model_ready(MODEL)
        assert client.is_model_ready(f"{MODEL}-text")
        assert server.target.ask("POST", INFER, infer_body())[0] == 404
        entries = {entry["name"]: entry for entry in client.get_model_repository_index()}
        assert (entries[MODEL]["state"], entries[MODEL]["reason"]) == ("UNAVAILABLE", "unloaded")
        client.unload_model(f"{MODEL}-text")
        client.load_model(MODEL)
        assert client.is_model_ready(MODEL)
        assert answers(server.target)
        with pytest.raises(triton.InferenceServerException, match="no model 'none'"):
            client.load_model("none")
        with pytest.raises(triton.InferenceServerException, match="parameters are not taken"):
            client.load_model(MODEL, config='{"max_batch_size": 4}')


def test_a_bearer_token_is_asked_for_everywhere_but_at_health(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("open sesame\n")
    options = ("--token-file", str(tmp_path / "token"), "--grpc-port", "0")
    with running(folder, *options, log=tmp_path / "log") as server:
        for path in ("/v2/health/live", "/v2/health/ready"):
            assert server.target.ask("GET", path)[0] == 200
        for method, path in [("GET", f"/v2/models/{MODEL}"), ("POST", INFER), ("GET", "/metrics"), ("GET", "/v2")]:
            status, headers, _ = server.target.ask(method, path, infer_body() if method == "POST" else b"")
            assert (status, headers["www-authenticate"]) == (401, "Bearer")
            assert server.target.ask(method, path, b"", {"Authorization": "Bearer open"})[0] == 401
        good = {"Authorization": "Bearer open sesame"}
        assert server.target.ask("POST", INFER, infer_body(), good)[0] == 200
        import tritonclient.grpc as over_grpc

        with over_grpc.InferenceServerClient(str(server.target.grpc)) as client:
            assert client.is_server_ready()
            with pytest.raises(over_grpc.InferenceServerException, match="bearer token"):
                client.get_model_metadata(MODEL)
            assert client.get_model_metadata(MODEL, headers={"authorization": "Bearer open sesame"}).name == MODEL
        assert "open sesame" not in server.log.read_text()


def test_poisoned_requests_fail_alone_of_750_innocent_ones(server: Server) -> None:
    innocent = [feeds(batch=1, length=5, seed=number) for number in range(15)]
    poison = infer_body(
        [
            {"name": name, "datatype": "INT64", "shape": [1, 5], "data": [VOCABULARY if name == "input_ids" else 1] * 5}
            for name in innocent[0]
        ]
    )
    refused = 0
    with Load(server.target, clients=15, arrays=innocent) as load:
        while load.statuses.total() < 750:
            refused += server.target.ask("POST", INFER, poison)[0] == 400
    assert set(load.statuses) == {"200"}
    assert refused > 10


def test_a_full_queue_is_answered_with_503_and_recovers(folder: Path, tmp_path: Path) -> None:
    options = ("--max-queue-size", "1", "--max-batch-size", "1")
    with running(folder, *options, log=tmp_path / "log") as server:
        with Load(server.target, clients=8) as load:
            wait_until(lambda: load.statuses["503"] > 0 and load.statuses["200"] > 20)
        assert set(load.statuses) == {"200", "503"}
        assert (
            server.target.ask("POST", INFER, infer_body([json_input(name, rows=1, value=0) for name in INPUTS]))[0]
            == 200
        )
        metrics = server.target.ask("GET", "/metrics")[2].decode()
        assert (
            f'nv_inference_request_failure{{model="{MODEL}",version="1",reason="REJECTED"}} {load.statuses["503"]}'
            in metrics
        )


@pytest.fixture
def many_files() -> Iterator[None]:
    """Room for thousands of connections in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 3_000:
        pytest.skip(f"a process may open {hard} files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 3_000), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_2000_idle_connections_and_slow_senders_do_not_stop_others(server: Server) -> None:
    host, _, port = server.target.address.partition(":")
    idle = [socket.create_connection((host, int(port))) for _ in range(2_000)]
    slow = [socket.create_connection((host, int(port))) for _ in range(50)]
    body = infer_body()
    head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    for place, connection in enumerate(slow):
        connection.sendall((head + body)[: 20 + 3 * place])
    try:
        started = time.monotonic()
        assert all(answers(server.target) for _ in range(20))
        assert time.monotonic() - started < 10
        for place, connection in enumerate(slow):
            connection.sendall((head + body)[20 + 3 * place :])
            assert connection.recv(12) == b"HTTP/1.1 200"
    finally:
        for connection in [*idle, *slow]:
            connection.close()


def test_a_sender_that_gives_up_leaves_nothing_behind(server: Server) -> None:
    host, _, port = server.target.address.partition(":")
    for _ in range(20):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{{".encode())
    assert answers(server.target)
    log = server.log.read_text()
    assert "Traceback" not in log


def test_metrics_have_tritons_names_and_count(server: Server) -> None:
    def value(name: str) -> float:
        text = server.target.ask("GET", "/metrics")[2].decode()
        (line,) = [line for line in text.splitlines() if line.startswith(f'{name}{{model="{MODEL}",version="1"')]
        return float(line.rpartition(" ")[2])

    names = ["nv_inference_request_success", "nv_inference_count", "nv_inference_exec_count"]
    before = [value(name) for name in names]
    assert answers(server.target)
    assert np.subtract([value(name) for name in names], before).tolist() == [1, 2, 1]
    assert value("nv_inference_compute_infer_duration_us") > 0
    assert value("nv_inference_pending_request_count") == 0
    assert server.target.ask("GET", "/metrics")[1]["content-type"].startswith("text/plain; version=0.0.4")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere",), "nothing at nowhere"),
        (("{empty}",), "holds nothing to serve; expected model.int8.onnx, model.onnx or engine.json"),
        (("{folder}", "--backend", "abacus"), "unknown backend 'abacus'"),
        (("{folder}", "--backend", "tensorrt"), "runs engines"),
        (("{folder}", "--host", "256.1.1.1"), "cannot listen on 256.1.1.1"),
        (("{folder}", "--token-file", "{empty}/none"), "none"),
        (("{folder}", "--token-file", "{empty}/blank"), "blank is empty; expected a token"),
        (("{folder}", "--name", 'a"b'), "no name of a model"),
        (("{folder}", "--name", "a/b"), "no name of a model"),
    ],
)
def test_a_wrong_start_ends_with_two_and_one_line(
    folder: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    (tmp_path / "blank").write_text("\n")
    made = [text.format(folder=folder, empty=tmp_path) for text in arguments]
    done = CliRunner().invoke(app, ["serve", *made, "--port", "0"])
    assert done.exit_code == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 2


def test_a_port_in_use_is_told(folder: Path, server: Server, tmp_path: Path) -> None:
    port = server.target.address.rpartition(":")[2]
    with pytest.raises(AssertionError, match=f"cannot listen on 127.0.0.1 port {port}: Address already in use"):
        start(folder, "--port", port, log=tmp_path / "log")


def test_nothing_is_logged_per_request_unless_asked_for(server: Server, folder: Path, tmp_path: Path) -> None:
    assert answers(server.target)
    assert "infer" not in server.log.read_text()
    with running(folder, "--access-log", log=tmp_path / "log") as talkative:
        assert answers(talkative.target)
        wait_until(lambda: f"POST {INFER}" in talkative.log.read_text())


def test_errors_name_the_offender(server: Server) -> None:
    status, _, body = server.target.ask("POST", INFER, b'{"inputs": []}')
    assert (status, json.loads(body)) == (400, {"error": "the request has no list 'inputs'"})
