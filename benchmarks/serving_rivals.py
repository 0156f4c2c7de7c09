"""``quietformer serve`` beside MLServer: the same graph on the same runtime, texts in, embeddings out.

    python benchmarks/serving_rivals.py model.int8.onnx --texts texts.txt --mlserver PYTHON

A rival needs an interpreter of an environment of its own that has it and ``openvino onnx onnx-ir tokenizers``. All answer with
JSON; batches of at most 16 (MLServer waits 5 ms for one). Rounds follow each other, a server that is
not measured is idle. Prints a table of medians, then one JSON line.
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
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from serving_clients import NAME, Job, clients_process, start_server

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from deploy.machine import machine_facts  # noqa: E402

RIVALS = ("mlserver",)


def http_requests(texts: list[str], *, path: str) -> list[bytes]:
    """A KServe v2 request per text."""
    made = []
    for text in texts:
        tensor = {"name": "TEXT", "datatype": "BYTES", "shape": [1, 1], "data": [text]}
        body = json.dumps({"inputs": [tensor]}).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        made.append(head.encode() + body)
    return made


def start_rival(name: str, python: str, graph: Path, log: Path) -> tuple[subprocess.Popen[bytes], int]:
    """The process and port of a rival that accepts connections."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    folder = ROOT / "benchmarks" / "rival_servers"
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{folder}"}
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [python, str(folder / f"serve_{name}.py"), str(graph), str(port)],
            stdout=stream, stderr=stream, env=environment, cwd=log.parent, start_new_session=True,
        )  # fmt: skip
    deadline = time.monotonic() + 120
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{name} did not start:\n{log.read_text()[-2000:]}") from None
            time.sleep(0.2)
        else:
            return process, port


def main() -> None:
    """Measure, print."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that what was started is ended
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph", type=Path)
    parser.add_argument("--texts", type=Path, required=True, help="a paragraph a line; sentences of them are sent")
    for name in RIVALS:
        parser.add_argument(f"--{name}", metavar="PYTHON", help="interpreter that has it")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0)
    arguments = parser.parse_args()
    lines = arguments.texts.read_text(encoding="utf-8").splitlines()
    texts = [text for line in lines for text in re.split(r"(?<=[.!?]) ", line) if 20 < len(text) < 250][:400]
    spawn = multiprocessing.get_context("spawn")
    clients, clients_end = spawn.Pipe()
    helper = spawn.Process(target=clients_process, args=(clients_end,))
    helper.start()
    running: dict[str, tuple[subprocess.Popen[bytes], int, list[bytes]]] = {}
    found: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            process, port = start_server(arguments.graph.resolve(), Path(folder) / "ours", [])
            path = f"/v2/models/{NAME}-text/infer"
            running["quietformer"] = process, port, http_requests(texts, path=path)
            for name in RIVALS:
                if python := getattr(arguments, name):
                    process, port = start_rival(name, python, arguments.graph.resolve(), Path(folder) / name)
                    running[name] = process, port, http_requests(texts, path="/v2/models/rival/infer")
            for number in range(arguments.rounds + 1):
                for name, (_, port, requests) in running.items():
                    seconds = arguments.seconds if number else 3.0
                    clients.send(Job(port=port, requests=requests, clients=arguments.clients, seconds=seconds))
                    took, latencies, errors = clients.recv()
                    if not number:  # a warm-up
                        continue
                    p50, p99 = np.percentile(latencies, [50, 99]) * 1e3
                    entry = {"per_second": len(latencies) / took, "p50_ms": p50, "p99_ms": p99, "errors": len(errors)}
                    found.setdefault(name, []).append(entry)
                    print(name, {key: round(value, 1) for key, value in entry.items()}, errors[:1], file=sys.stderr)
        finally:
            clients.send(None)
            helper.join()
            for process, _, _ in running.values():
                process.terminate()
            time.sleep(2)
            for name, (process, _, _) in running.items():
                if name != "quietformer":
                    _kill_session(process)  # children that outlive their parent
    print("| server | requests/s | p50 ms | p99 ms | errors |\n|---|--:|--:|--:|--:|")
    for name, rounds in found.items():
        rate, p50, p99 = (
            statistics.median(entry[key] for entry in rounds) for key in ("per_second", "p50_ms", "p99_ms")
        )
        print(f"| {name} | {rate:.1f} | {p50:.0f} | {p99:.0f} | {sum(entry['errors'] for entry in rounds)} |")
    print(json.dumps({"rounds": found, "machine": asdict(machine_facts())}))


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    """The rival's own process group, which this script started."""
    try:
        os.killpg(process.pid, 9)
    except ProcessLookupError:
        return


if __name__ == "__main__":
    main()
