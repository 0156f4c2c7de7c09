"""``quietformer serve`` beside MLServer, the kserve SDK and LitServe: the same graph on the same ONNX Runtime, texts in, embeddings out.

    python benchmarks/serving_rivals.py model.int8.onnx --texts texts.txt --mlserver PYTHON --kserve PYTHON --litserve PYTHON

A rival needs an interpreter of an environment of its own that has it and ``onnxruntime onnx onnx-ir tokenizers``. All answer with
JSON, run batches of at most 16 rows and pad to the same lengths (``rival_servers/embedder.py``); MLServer and LitServe wait at most 5 ms
for a batch, the kserve SDK forms none. The clients are one process. Rounds follow each other, a server that is not measured is stopped.
Processor time is of the server with all its processes. Prints a table of medians, then one JSON line.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.serving_clients import NAME, Job, clients_process, cpu_seconds, start_server
from deploy.data.encoding import TextEncoder
from deploy.machine import machine_facts
from deploy.serving.batch_assembly import padded_length

ROOT = Path(__file__).parents[1]
RIVALS = ("mlserver", "kserve", "litserve")
_PATHS = {"mlserver": "/v2/models/rival/infer", "kserve": "/v2/models/rival/infer", "litserve": "/predict"}
_VERSIONS = "import importlib.metadata as m; print(*(m.version(n) for n in ({!r}, 'onnxruntime')))"


@dataclass(frozen=True, kw_only=True)
class Running:
    """A server to measure."""

    process: subprocess.Popen[bytes]
    port: int
    path: str
    versions: str

    def requests(self, texts: list[str]) -> list[bytes]:
        """A request per text, as this server wants it."""
        return [self._request(text) for text in texts]

    def _request(self, text: str) -> bytes:
        tensor = {"name": "TEXT", "datatype": "BYTES", "shape": [1, 1], "data": [text]}
        body = json.dumps({"text": text} if self.path == "/predict" else {"inputs": [tensor]}).encode()
        head = f"POST {self.path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def start_rival(name: str, python: str, graph: Path, log: Path) -> Running:
    """A rival that answers."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    folder = ROOT / "benchmarks" / "rival_servers"
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{folder}"}
    versions = subprocess.run([python, "-c", _VERSIONS.format(name)], capture_output=True, text=True, check=True).stdout
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [python, str(folder / f"serve_{name}.py"), str(graph), str(port)],
            stdout=stream, stderr=stream, env=environment, cwd=log.parent, start_new_session=True,
        )  # fmt: skip
    deadline = time.monotonic() + 120
    running = Running(process=process, port=port, path=_PATHS[name], versions=versions.strip())
    while not _answer(running, "a quiet model"):
        if process.poll() is not None or time.monotonic() > deadline:
            _end(running)
            raise SystemExit(f"{name} did not start:\n{log.read_text()[-2000:]}")
        time.sleep(0.2)
    return running


def _answer(running: Running, text: str) -> list[float]:
    """The embedding of one text; empty while the server does not answer."""
    head, _, body = running.requests([text])[0].partition(b"\r\n\r\n")
    del head
    address = f"http://127.0.0.1:{running.port}{running.path}"
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            document = json.loads(answer.read())
    except OSError:
        return []
    found = document["embedding"] if running.path == "/predict" else document["outputs"][0]["data"]
    return [float(value) for value in np.ravel(found)]


def sentences(texts: Path, tokenizer: Path, tokens: int | None) -> list[str]:
    """At most 400 sentences; with ``tokens`` only those that are padded to so many."""
    lines = texts.read_text(encoding="utf-8").splitlines()
    found = [text for line in lines for text in re.split(r"(?<=[.!?]) ", line) if 20 < len(text) < 250]
    if tokens is not None:
        rows = TextEncoder(tokenizer, max_length=512).encode(found)
        found = [text for text, row in zip(found, rows, strict=True) if padded_length(len(row), None) == tokens]
    return found[:400]


def measure(arguments: argparse.Namespace, running: dict[str, Running], texts: list[str]) -> dict[str, Any]:
    """All rounds, the first one a warm-up."""
    spawn = multiprocessing.get_context("spawn")
    clients, clients_end = spawn.Pipe()
    helper = spawn.Process(target=clients_process, args=(clients_end,))
    helper.start()
    found: dict[str, list[dict[str, Any]]] = {}
    try:
        for number in range(arguments.rounds + 1):
            for name, server in running.items():
                seconds = arguments.seconds if number else 3.0
                for other in running.values():
                    _signal(other, signal.SIGCONT if other is server else signal.SIGSTOP)
                cpu_before = cpu_seconds(server.process.pid)
                requests = server.requests(texts)
                clients.send(Job(port=server.port, requests=requests, clients=arguments.clients, seconds=seconds))
                took, latencies, errors = clients.recv()
                if not number:
                    continue
                p50, p99 = np.percentile(latencies, [50, 99]) * 1e3
                cpu = (cpu_seconds(server.process.pid) - cpu_before) / len(latencies)
                entry = {"per_second": len(latencies) / took, "p50_ms": p50, "p99_ms": p99, "cpu_ms": cpu * 1e3}
                print(name, {key: round(float(value), 1) for key, value in entry.items()}, errors[:1], file=sys.stderr)
                found.setdefault(name, []).append(entry | {"errors": len(errors), "requests": len(latencies)})
    finally:
        clients.send(None)
        helper.join()
    return found


def _signal(server: Running, number: int) -> None:
    """To a server; of a rival also to its children, which have its session."""
    if server.path not in _PATHS.values():
        server.process.send_signal(number)
        return
    try:
        os.killpg(server.process.pid, number)
    except ProcessLookupError:
        return


def _end(server: Running) -> None:
    """Stop a server, and children that outlive it."""
    _signal(server, signal.SIGCONT)
    server.process.terminate()
    try:
        server.process.wait(10)
    except subprocess.TimeoutExpired:
        server.process.kill()
    _signal(server, signal.SIGKILL)


def main() -> None:
    """Measure, print."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that what was started is ended
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph", type=Path, help="its tokenizer.json beside it")
    parser.add_argument("--texts", type=Path, required=True, help="a paragraph a line; sentences of them are sent")
    parser.add_argument("--tokens", type=int, help="send only sentences that are padded to so many tokens")
    for name in RIVALS:
        parser.add_argument(f"--{name}", metavar="PYTHON", help="interpreter that has it")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0)
    arguments = parser.parse_args()
    graph = arguments.graph.resolve()
    texts = sentences(arguments.texts, graph.parent / "tokenizer.json", arguments.tokens)
    running: dict[str, Running] = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            options = ["--backend", "onnxruntime", "--max-batch-size", "16"]
            process, port = start_server(graph, Path(folder) / "ours", options)
            facts = machine_facts()
            versions = f"{facts.versions['quietformer']} {facts.versions['onnxruntime']}"
            path = f"/v2/models/{NAME}-text/infer"
            running["quietformer"] = Running(process=process, port=port, path=path, versions=versions)
            for name in RIVALS:
                if python := getattr(arguments, name):
                    running[name] = start_rival(name, python, graph, Path(folder) / name)
            vectors = {name: _answer(server, texts[0]) for name, server in running.items()}
            difference = max(np.abs(np.subtract(v, vectors["quietformer"])).max() for v in vectors.values())
            found = measure(arguments, running, texts)
        finally:
            for server in running.values():
                _end(server)
    print(
        "| server | requests/s | rounds | p50 ms | p99 ms | CPU ms a request | errors |\n|---|--:|---|--:|--:|--:|--:|"
    )
    for name, rounds in found.items():
        rate, p50, p99, cpu = (
            statistics.median(entry[key] for entry in rounds) for key in ("per_second", "p50_ms", "p99_ms", "cpu_ms")
        )
        rates = ", ".join(f"{entry['per_second']:.0f}" for entry in rounds)
        errors = sum(entry["errors"] for entry in rounds)
        print(f"| {name} | {rate:.1f} | {rates} | {p50:.0f} | {p99:.0f} | {cpu:.1f} | {errors} |")
    outcome = {
        "benchmark": "serving_rivals",
        "settings": {key: str(value) for key, value in vars(arguments).items() if key not in RIVALS},
        "versions": {name: server.versions for name, server in running.items()},
        "largest_difference": float(difference), "rounds": found, "machine": asdict(facts),
    }  # fmt: skip
    print(json.dumps(outcome))


if __name__ == "__main__":
    main()
