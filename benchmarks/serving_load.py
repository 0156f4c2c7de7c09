"""Throughput and latency of ``quietformer serve`` under concurrent clients, beside the bare session given the same batches.

    python benchmarks/serving_load.py model.int8.onnx --clients 16 --length 128 --rounds 5 --seconds 10
    python benchmarks/serving_load.py model.onnx --memory 200000

Every round lets the clients ask for some seconds, reads from the server's statistics which batches it formed, and gives a bare session
in another process exactly these batches; rounds follow each other, so that a busy machine slows both alike, and processor time per row,
which a busy machine changes little, is told too (of the server's process, and of the bare session's). Clients are one process with
one connection each, without pauses, with requests prepared beforehand (binary tensors in and out, real texts cut to one length). With
``--memory N`` it sends so many requests and prints the server's resident memory along the way. Prints a table, then one JSON line.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import signal
import statistics
import sys
import tempfile
import time
import urllib.request
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.serving_clients import NAME, Job, clients_process, cpu_seconds, start_server
from deploy.backends.opening import open_backend
from deploy.data.encoding import TextEncoder
from deploy.machine import machine_facts


def requests_of(
    graph: Path, *, length: int, count: int, texts: Path | None
) -> tuple[list[bytes], list[dict[str, np.ndarray]]]:
    """HTTP requests of one row each, and the same rows as feeds; ids are of texts, or random without any."""
    with open_backend("openvino", graph, threads=1) as backend:
        names, info = backend.input_names, backend.info
    assert info is not None
    if texts is None:
        ids = np.random.default_rng(0).integers(4, info.vocab_size, (count, length))
    else:
        encoder = TextEncoder(graph.parent / "tokenizer.json", max_length=length)
        lines = [line for line in texts.read_text(encoding="utf-8").splitlines() if len(line) > 6 * length]
        ids = np.stack([row for row in encoder.encode(lines[: 4 * count]) if len(row) == length][:count])
    made, rows = [], []
    for row in ids:
        feeds = {name: np.full((1, length), int(name == "attention_mask"), np.int64) for name in names}
        feeds["input_ids"] = row[None].astype(np.int64)
        inputs = [
            {"name": name, "datatype": "INT64", "shape": [1, length], "parameters": {"binary_data_size": 8 * length}}
            for name in names
        ]
        head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
        body = head + b"".join(feeds[name].tobytes() for name in names)
        line = f"POST /v2/models/{NAME}/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
        made.append(f"{line}Inference-Header-Content-Length: {len(head)}\r\n\r\n".encode() + body)
        rows.append(feeds)
    return made, rows


def bare_process(pipe: Any, graph: str, backend: str, threads: int | None, rows: list[dict[str, np.ndarray]]) -> None:
    """Answer {rows of a batch: runs} with the seconds and processor seconds that they take, until None comes."""
    with open_backend(backend, Path(graph), threads=threads) as session:
        batches = {
            size: {name: np.concatenate([rows[place % len(rows)][name] for place in range(size)]) for name in rows[0]}
            for size in range(1, 65)
        }
        while (job := pipe.recv()) is not None:
            sizes = np.repeat(list(job), list(job.values()))
            np.random.default_rng(0).shuffle(sizes)
            for size in set(job):
                session.infer(batches[size])
            started, cpu_started = time.perf_counter(), time.process_time()
            for size in sizes:
                session.infer(batches[int(size)])
            pipe.send((time.perf_counter() - started, time.process_time() - cpu_started))


def batches_of(port: int) -> dict[int, int]:
    """Runs by rows, from the server's statistics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/models/{NAME}/stats") as answer:
        (found,) = json.loads(answer.read())["model_stats"]
    return {entry["batch_size"]: entry["compute_infer"]["count"] for entry in found["batch_stats"]}


def resident_mib(pid: int) -> float:
    """Resident memory of a process."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def measure(arguments: argparse.Namespace, log: Path) -> dict[str, Any]:
    """All rounds."""
    requests, rows = requests_of(arguments.graph, length=arguments.length, count=64, texts=arguments.texts)
    spawn = multiprocessing.get_context("spawn")
    (clients, clients_end), (bare, bare_end) = spawn.Pipe(), spawn.Pipe()
    threads = ["--threads", str(arguments.threads)] if arguments.threads else []
    options = ["--max-batch-size", str(arguments.max_batch), "--backend", arguments.backend, *threads]
    server, port = start_server(arguments.graph, log, options)
    helpers = [
        spawn.Process(target=clients_process, args=(clients_end,)),
        spawn.Process(
            target=bare_process, args=(bare_end, str(arguments.graph), arguments.backend, arguments.threads, rows)
        ),
    ]
    for helper in helpers:
        helper.start()
    try:
        clients.send(Job(port=port, requests=requests, clients=arguments.clients, seconds=2.0))
        clients.recv()
        if arguments.memory:
            return _memory(arguments, server.pid, port, requests, clients)
        rounds = []
        latencies: list[float] = []
        for _ in range(arguments.rounds):
            before, cpu_before = batches_of(port), cpu_seconds(server.pid)
            clients.send(Job(port=port, requests=requests, clients=arguments.clients, seconds=arguments.seconds))
            seconds, found, errors = clients.recv()
            assert not errors, errors[:3]
            served_cpu = cpu_seconds(server.pid) - cpu_before
            formed = {size: count - before.get(size, 0) for size, count in batches_of(port).items()}
            formed = {size: count for size, count in formed.items() if count}
            bare.send(formed)
            bare_seconds, bare_cpu = bare.recv()
            asked = sum(size * count for size, count in formed.items())
            rounds.append(
                {
                    "served": len(found) / seconds, "bare": asked / bare_seconds, "batches": formed,
                    "served_cpu_ms": served_cpu / asked * 1e3, "bare_cpu_ms": bare_cpu / asked * 1e3,
                }
            )  # fmt: skip
            latencies += found
            print(" ".join(f"{key} {value}" for key, value in rounds[-1].items()), file=sys.stderr)
        shares = [entry["served"] / entry["bare"] for entry in rounds]
        points = np.percentile(latencies, [50, 90, 99]) * 1e3
        return {
            "rounds": rounds, "share_of_bare": statistics.median(shares), "shares": shares,
            "p50_ms": points[0], "p90_ms": points[1], "p99_ms": points[2], "requests": len(latencies),
        }  # fmt: skip
    finally:
        for pipe in (clients, bare):
            pipe.send(None)
        for helper in helpers:
            helper.join()
        server.terminate()
        server.wait()


def _memory(arguments: argparse.Namespace, pid: int, port: int, requests: list[bytes], clients: Any) -> dict[str, Any]:
    found: list[tuple[int, float]] = [(0, resident_mib(pid))]
    step = arguments.memory // 10
    while found[-1][0] < arguments.memory:
        clients.send(Job(port=port, requests=requests, clients=arguments.clients, most=step // arguments.clients))
        _, latencies, errors = clients.recv()
        assert not errors, errors[:3]
        found.append((found[-1][0] + len(latencies), resident_mib(pid)))
        print(f"{found[-1][0]:8d} requests: {found[-1][1]:.1f} MiB", file=sys.stderr)
    return {"memory_mib": found}


def main() -> None:
    """Measure, print."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that what was started is ended
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph", type=Path)
    parser.add_argument("--backend", default="openvino")
    parser.add_argument("--texts", type=Path, help="a text a line; random ids by default")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--max-batch", type=int, default=16)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--memory", type=int, default=0, help="requests")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        outcome = measure(arguments, Path(folder) / "log")
    if "share_of_bare" in outcome:
        keys = ("served", "bare", "served_cpu_ms", "bare_cpu_ms")
        served, bare, served_cpu, bare_cpu = (
            statistics.median(entry[key] for entry in outcome["rounds"]) for key in keys
        )
        print("| rows/s served | bare | share | CPU ms a row, served | bare | p50 ms | p90 ms | p99 ms |")
        print("|--:|--:|--:|--:|--:|--:|--:|--:|")
        print(
            f"| {served:.1f} | {bare:.1f} | {outcome['share_of_bare']:.1%} | {served_cpu:.2f} | {bare_cpu:.2f} | {outcome['p50_ms']:.1f} "
            f"| {outcome['p90_ms']:.1f} | {outcome['p99_ms']:.1f} |"
        )
    print(
        json.dumps(
            {"settings": {k: str(v) for k, v in vars(arguments).items()}}
            | outcome
            | {"machine": asdict(machine_facts())}
        )
    )


if __name__ == "__main__":
    main()
