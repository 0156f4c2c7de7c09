"""Quantize one ONNX graph with one tool, in a process of its own, and tell how long it took and how much memory it needed.

Imports nothing of this project but for its own rows, so that it runs in any rival's environment:

python benchmarks/rival_quantizers.py ROW model.onnx samples.npz out.onnx [--batch-size 16]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.rival_rows import ROWS


def run_apart(
    row: str, model: Path, samples: Path, out: Path, *, python: str = sys.executable, seconds: float = 600
) -> dict[str, Any]:
    """Run a row in a process of its own.

    Args:
        row: one of :data:`benchmarks.rival_rows.ROWS`.
        model: float ONNX graph.
        samples: ``.npz`` with an array per input.
        out: ONNX file to write.
        python: interpreter that has the row's package.
        seconds: after which it is given up.

    Returns:
        ``seconds`` and ``peak_mb`` of calibration and quantization, or ``skipped`` with the reason.
    """
    package = ROWS[row].package
    probe = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    if subprocess.run([python, "-c", probe], check=False).returncode:
        return {"skipped": f"needs the package {package}, which {python} has not"}
    with tempfile.TemporaryFile("w+") as told:
        arguments = [python, str(Path(__file__).resolve()), row, str(model), str(samples), str(out)]
        try:
            done = subprocess.run(
                arguments, stdout=subprocess.PIPE, stderr=told, text=True, check=False, timeout=seconds
            )
        except subprocess.TimeoutExpired:
            return {"skipped": f"not done after {seconds:.0f} s"}
        told.seek(0)
        last = ["", *told.read().strip().splitlines()][-1]
    if done.returncode or not done.stdout.strip():
        return {"skipped": f"failed: {last[:160]}"}
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def main() -> None:
    """Run one row here."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row", choices=ROWS)
    parser.add_argument("model", type=Path)
    parser.add_argument("samples", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--batch-size", type=int, default=16)
    given = parser.parse_args()
    with np.load(given.samples, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    total = len(next(iter(arrays.values())))
    batches = [
        {name: array[start : start + given.batch_size] for name, array in arrays.items()}
        for start in range(0, total, given.batch_size)
    ]
    started = time.perf_counter()
    ROWS[given.row].work(given.model, batches, given.out)
    seconds = time.perf_counter() - started
    print(json.dumps({"seconds": round(seconds, 1), "peak_mb": _peak_megabytes(), "mb": _megabytes(given.out)}))


def _peak_megabytes() -> int:
    """Largest resident memory of this process; ``getrusage`` would count that of the process it was forked from."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    kilobytes = next(line for line in status.splitlines() if line.startswith("VmHWM:")).split()[1]
    return round(int(kilobytes) * 1024 / 1e6)


def _megabytes(graph: Path) -> float:
    beside = list(graph.parent.glob(f"{graph.name}*data"))
    return round(sum(part.stat().st_size for part in (graph, *beside)) / 1e6, 1)


if __name__ == "__main__":
    main()
