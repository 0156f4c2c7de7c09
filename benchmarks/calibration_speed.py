"""Time and peak memory of calibration beside plain inference, and of quantization per profile, each in a process of its own.

python benchmarks/calibration_speed.py --model model.onnx --data TEXTS

Rounds go through inference and every method in turns, on the same batches, encoded before the clock starts; opening the graph is
on the clock of all of them, which is said apart. ``quantize`` is the whole command, on the ranges of the last method calibrated.
Prints tables and one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

METHODS = ("minmax", "running-minmax", "percentile", "mse", "entropy")
WRITTEN = (
    "--profile tensorrt",
    "--profile ort",
    "--profile paper",
    "--weights per-channel",
    "--weights mse",
    "--include kind:embedding",
)
_INFERENCE = "inference"
_BATCH = 16


def measure(told: argparse.Namespace, method: str, out: str) -> dict[str, float]:
    """Run one calibration, or inference, in this process.

    Args:
        told: what the command was told.
        method: of the calibration, or ``inference``.
        out: file for the cache.

    Returns:
        Seconds in all and until the graph was open (of inference alone).
    """
    from deploy.backends.opening import open_backend
    from deploy.calibration.calibrate import calibrate
    from quietformer.graph_data.graph_inputs import graph_inputs

    inputs = graph_inputs(told.model, length=told.length)
    drawn, _ = inputs.calibration_batches(told.data, batches=told.samples // _BATCH, batch_size=_BATCH, seed=0)
    batches = [dict(feeds) for feeds in drawn]
    started = time.monotonic()
    if method == _INFERENCE:
        with open_backend("onnxruntime", told.model, threads=told.threads) as backend:
            opened = time.monotonic()
            for feeds in batches:
                backend.infer(feeds)
        return {"seconds": time.monotonic() - started, "opening": opened - started}
    cache = calibrate(told.model, batches, method=method, data={"kind": "benchmark"}, seed=0, threads=told.threads)
    for tensor in cache.tensors:
        cache.range_of(tensor)
    seconds = time.monotonic() - started
    cache.save(Path(out), force=True)
    return {"seconds": seconds}


def run_apart(command: list[str]) -> dict[str, Any]:
    """Run a command; what it printed last, its seconds and its peak resident memory in MB."""
    started = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        printed = process.stdout.read().splitlines()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"failed: {' '.join(command)}")
    return {"seconds": time.monotonic() - started, "peak_mb": used.ru_maxrss / 1024, "printed": printed[-1:]}


def _settings(told: argparse.Namespace) -> list[str]:
    return [
        *("--model", str(told.model), "--data", told.data, "--samples", str(told.samples)),
        *("--length", str(told.length), "--threads", str(told.threads)),
    ]


def _calibrated(told: argparse.Namespace, cache: Path) -> dict[str, dict[str, Any]]:
    """Seconds of every round, their median over inference's, and the peak, by method."""
    rows: dict[str, dict[str, Any]] = {
        name: {"seconds": [], "opening": [], "peak_mb": 0.0} for name in (_INFERENCE, *told.methods)
    }
    for number in range(told.rounds):
        for name, row in rows.items():
            cell = run_apart([sys.executable, __file__, *_settings(told), "--one", name, str(cache)])
            found = json.loads(cell["printed"][0])
            row["seconds"].append(found["seconds"])
            if "opening" in found:
                row["opening"].append(found["opening"])
            row["peak_mb"] = max(row["peak_mb"], cell["peak_mb"])
            print(f"round {number + 1}, {name}: {found['seconds']:.1f} s", file=sys.stderr, flush=True)
    plain = rows[_INFERENCE]
    for row in rows.values():
        row["ratio"] = statistics.median(a / b for a, b in zip(row["seconds"], plain["seconds"], strict=True))
    return rows


def _quantized(told: argparse.Namespace, cache: Path) -> dict[str, dict[str, Any]]:
    """Seconds of every round and the peak, by what is written."""
    rows: dict[str, dict[str, Any]] = {options: {"seconds": [], "peak_mb": 0.0} for options in told.written}
    for _ in range(told.rounds):
        for options, row in rows.items():
            out = cache.parent / "model.int8.onnx"
            command = [sys.executable, "-m", "quietformer", "quantize", str(told.model), "--calibration", str(cache)]
            cell = run_apart([*command, "--out", str(out), "--force", *options.split()])
            row["seconds"].append(cell["seconds"])
            row["peak_mb"] = max(row["peak_mb"], cell["peak_mb"])
            row["output_mb"] = out.stat().st_size / 1e6
    return rows


def _times(seconds: list[float]) -> str:
    return ", ".join(f"{value:.1f}" for value in seconds)


def main() -> None:
    """Measure every cell and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--samples", type=int, default=512, help=f"texts, in batches of {_BATCH}")
    parser.add_argument("--length", type=int, default=128, help="cut texts to so many tokens")
    parser.add_argument("--threads", type=int, default=1, help="of ONNX Runtime")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument(
        "--written", nargs="*", default=WRITTEN, help="options of 'quietformer quantize', an argument each"
    )
    parser.add_argument("--one", nargs=2, metavar=("METHOD", "CACHE"), help=argparse.SUPPRESS)
    told = parser.parse_args()
    if told.one is not None:
        print(json.dumps(measure(told, *told.one)))
        return
    from deploy.machine import machine_facts

    with tempfile.TemporaryDirectory(prefix="quietformer-") as folder:
        cache = Path(folder) / "calibration.json"
        calibrated, quantized = _calibrated(told, cache), _quantized(told, cache)
    print("| calibration | seconds | of inference | peak |\n|---|--:|--:|--:|")
    for name, row in calibrated.items():
        print(f"| {name} | {_times(row['seconds'])} | {row['ratio']:.2f} | {row['peak_mb']:.0f} MB |")
    print(f"\nOpening for inference: {_times(calibrated[_INFERENCE]['opening'])} s.\n")
    print("| quantize | seconds | peak | output |\n|---|--:|--:|--:|")
    for options, row in quantized.items():
        print(f"| `{options}` | {_times(row['seconds'])} | {row['peak_mb']:.0f} MB | {row['output_mb']:.1f} MB |")
    machine = machine_facts()
    facts = {
        "model": told.model.name,
        "samples": told.samples,
        "batch": _BATCH,
        "length": told.length,
        "threads": told.threads,
    }
    print(
        json.dumps(
            facts | {"cpu": machine.cpu, "cores": machine.num_cores, "calibrate": calibrated, "quantize": quantized}
        )
    )


if __name__ == "__main__":
    main()
