"""Peak memory of calibration by method and number of samples, each in a process of its own, on texts of ragged lengths.

python benchmarks/calibration_memory.py --model model.onnx --data TEXTS

Prints a table and one line of JSON. ``inference`` runs the same batches through the float graph and keeps nothing.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

METHODS = ("inference", "minmax", "running-minmax", "percentile", "mse", "entropy")
COUNTS = (64, 256, 1024, 4096)
_BATCH = 16


def measure(model: Path, data: str, method: str, samples: int, *, length: int, threads: int) -> dict[str, float]:
    """Run one calibration in this process.

    Args:
        model: float graph.
        data: texts.
        method: of the calibration, or ``inference``.
        samples: texts.
        length: texts are cut to so many tokens.
        threads: of ONNX Runtime.

    Returns:
        Peak resident memory in MB and seconds of the run.
    """
    from deploy.backends.opening import open_backend
    from deploy.calibration.calibrate import calibrate
    from quietformer.graph_data.graph_inputs import graph_inputs

    inputs = graph_inputs(model, length=length)
    batches, _ = inputs.calibration_batches(data, batches=samples // _BATCH, batch_size=_BATCH, seed=0)
    before = _peak()
    started = time.monotonic()
    if method == "inference":
        with open_backend("onnxruntime", model, threads=threads) as backend:
            for feeds in batches:
                backend.infer(dict(feeds))
    else:
        cache = calibrate(model, batches, method=method, data={"kind": "benchmark"}, seed=0, threads=threads)
        for tensor in cache.tensors:
            cache.range_of(tensor)
    return {"peak_mb": _peak(), "before_mb": before, "seconds": time.monotonic() - started}


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Measure every cell and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--counts", type=int, nargs="+", default=COUNTS)
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--length", type=int, default=128, help="cut texts to so many tokens")
    parser.add_argument("--threads", type=int, default=1, help="of ONNX Runtime")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time: peaks are each process's own")
    parser.add_argument("--one", nargs=2, metavar=("METHOD", "SAMPLES"), help=argparse.SUPPRESS)
    told = parser.parse_args()
    if told.one is not None:
        method, samples = told.one[0], int(told.one[1])
        print(json.dumps(measure(told.model, told.data, method, samples, length=told.length, threads=told.threads)))
        return
    from deploy.machine import machine_facts

    settings = [
        "--model",
        str(told.model),
        "--data",
        told.data,
        "--length",
        str(told.length),
        "--threads",
        str(told.threads),
    ]

    def run(cell: tuple[str, int]) -> dict[str, float]:
        command = [sys.executable, __file__, *settings, "--one", cell[0], str(cell[1])]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        print(f"{cell[0]}, {cell[1]} samples: {found['peak_mb']:.0f} MB", file=sys.stderr, flush=True)
        return found

    cells = [(method, samples) for method in told.methods for samples in told.counts]
    with ThreadPoolExecutor(told.jobs) as pool:
        measured = dict(zip(cells, pool.map(run, cells), strict=True))
    results = {method: {samples: measured[method, samples] for samples in told.counts} for method in told.methods}
    print("| method | " + " | ".join(f"{samples:,} samples" for samples in told.counts) + " |")
    print("|---|" + "--:|" * len(told.counts))
    for method, row in results.items():
        print(f"| {method} | " + " | ".join(f"{row[samples]['peak_mb']:.0f} MB" for samples in told.counts) + " |")
    machine = machine_facts()
    print(json.dumps({"model": told.model.name, "batch": _BATCH, "length": told.length, "threads": told.threads, "cpu": machine.cpu,
                      "cores": machine.num_cores, "results": results}))  # fmt: skip


if __name__ == "__main__":
    main()
