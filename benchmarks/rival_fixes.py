"""Fixes that need no training, in one harness: STS-B in integers of a model as it is, with each fix, and of a retrofitted one.

Example: python benchmarks/rival_fixes.py --model original.onnx --model retrofitted.onnx --calibration texts.txt --task-data sts-dev.csv \
             --out runs/fixes

Every row has the same calibration batches and, but for the mixed row, the same sites; ranges are min-max unless the row says otherwise.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx

from deploy.backends.opening import open_backend
from deploy.calibration.calibrate import calibrate
from deploy.calibration.calibration_subset import Batch
from deploy.files import write_atomically
from deploy.graphs.graph_structure import load_graph
from deploy.machine import machine_facts
from deploy.quantization.bias_correction import correct_biases, corrected_layers
from deploy.quantization.channel_statistics import channel_statistics
from deploy.quantization.quantize import quantize
from deploy.quantization.smoothing import smooth, smoothed_tensors
from quietformer.graph_data.graph_inputs import graph_inputs
from quietformer.graph_data.task_opening import open_task

Fix = Callable[[Path, list[Batch], Path, str], None]
_LENGTH = 128


def plain(*, method: str = "minmax", weights: str = "minmax", alpha: float | None = None, bias: bool = False) -> Fix:
    """Calibrate, quantize, and the fixes that are asked for."""

    def run(graph: Path, batches: list[Batch], out: Path, profile: str) -> None:
        if alpha is not None:
            model = load_graph(graph)
            smooth(model, channel_statistics(graph, list(smoothed_tensors(model)), batches), alpha=alpha)
            graph = out.with_suffix(".float.onnx")
            onnx.save(model, graph)
        cache = calibrate(graph, batches, method=method, data={"kind": "benchmark"}, seed=0)
        quantize(graph, cache, out, profile=profile, weights=weights, force=True)  # type: ignore[arg-type]
        if bias:
            floats, quantized = load_graph(graph), load_graph(out)
            names = sorted({layer.input for layer in corrected_layers(floats)})
            correct_biases(floats, quantized, channel_statistics(graph, names, batches))
            onnx.save(quantized, out)

    return run


FIXES: dict[str, Fix] = {
    "none": plain(),
    "percentile ranges": plain(method="percentile"),
    "mse ranges": plain(method="mse"),
    "per-channel weights": plain(weights="per-channel"),
    "mse weights": plain(weights="mse"),
    "bias correction": plain(bias=True),
    "SmoothQuant 0.5": plain(alpha=0.5),
    "SmoothQuant 0.5 + per-channel + bias": plain(alpha=0.5, weights="per-channel", bias=True),
}


def main() -> None:
    """Print a line per model, profile and fix, and write ``rival-fixes.json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", required=True, type=Path, help="float graphs; repeatable")
    parser.add_argument("--calibration", required=True, help="texts, never those of the task")
    parser.add_argument("--task-data", required=True, help="scored sentence pairs")
    parser.add_argument("--profile", action="append", help="tensorrt and paper by default")
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--limit", type=int, help="first so many pairs")
    parser.add_argument("--backend", default="onnxruntime")
    parser.add_argument("--threads", type=int, help="of the backend; its own choice by default")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for graph in given.model:
        inputs = graph_inputs(graph, length=_LENGTH)
        drawn, _ = inputs.calibration_batches(given.calibration, batches=given.batches, batch_size=16, seed=0)
        batches = [dict(batch) for batch in drawn]
        with open_backend("onnxruntime", graph, threads=given.threads) as reference:
            task = open_task("sts", graph, given.task_data, float_infer=reference.infer, limit=given.limit)
            rows.append({"model": graph.parent.name, "fix": "float32", "score": task.evaluate(reference.infer).score})
        print(rows[-1], file=sys.stderr, flush=True)
        for profile in given.profile or ["tensorrt", "paper"]:
            for name, fix in FIXES.items():
                out = given.out / "row.onnx"
                started = time.perf_counter()
                fix(graph, batches, out, profile)
                seconds = round(time.perf_counter() - started, 1)
                with open_backend(given.backend, out, threads=given.threads) as opened:
                    score = task.evaluate(opened.infer).score
                row = {"model": graph.parent.name, "profile": profile, "fix": name, "score": score, "seconds": seconds}
                rows.append(row)
                print(row, file=sys.stderr, flush=True)
                write_atomically(given.out / "rival-fixes.json", json.dumps(rows, indent=1) + "\n")
    print(f"{'model':<16}{'profile':<12}{'fix':<40}{'Spearman':>9}")
    for row in rows:
        print(f"{row['model']:<16}{row.get('profile', ''):<12}{row['fix']:<40}{row['score']:>9.4f}")
    print(json.dumps({"machine": str(machine_facts()), "rows": rows}))


if __name__ == "__main__":
    main()
