"""What do clipped softmax and gates cost when a model runs? all-MiniLM-L6-v2 per variant, in turns, float and INT8, on the CPU backends.

    python benchmarks/attention_latency.py --out runs/attention --threads 1

A variant is the converted public model (clipping and gates where conversion puts them, nothing is trained: arithmetic does not depend on
values). Each is exported, calibrated on random ids (no accuracy is measured) and quantized with profile ``tensorrt``; graphs are made once. Variants of
one backend and precision take turns, so that a busy machine slows all of them alike; a share is the median time of paired rounds against vanilla.
Prints a table, then one JSON line with hardware and versions.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.rtx_models import REAL
from deploy.backends.opening import open_backend
from deploy.calibration.calibrate import RANDOM_KIND, calibrate
from deploy.machine import machine_facts
from deploy.measuring.bench import Candidate, bench
from deploy.quantization.quantize import quantize
from export.to_onnx import export_checkpoint
from quietformer.graph_data.graph_inputs import graph_inputs
from quietformer.report.tables import Table
from quietformer.terminal_table import terminal_table
from train.attention.settings import AttentionSettings

VARIANTS: dict[str, AttentionSettings] = {
    "vanilla": AttentionSettings(),
    "clipped": AttentionSettings(softmax="clipped", gamma=-0.03),
    "clipped per row": AttentionSettings(softmax="clipped_per_row", alpha=3.2),
    "off by one": AttentionSettings(softmax="off_by_one"),
    "gate linear": AttentionSettings(gate="linear", gate_scale=2.0),
    "gate mlp": AttentionSettings(gate="mlp", gate_hidden=16, gate_scale=2.0),
    "gate all heads": AttentionSettings(gate="all_heads_linear", gate_scale=2.0),
    "clipped, gate linear": AttentionSettings(softmax="clipped", gamma=-0.03, gate="linear", gate_scale=2.0),
}


def make_graphs(name: str, folder: Path) -> dict[str, Path]:
    """Float and INT8 graph of a variant; made where they are missing."""
    graphs = {"float": folder / "model.onnx", "int8": folder / "model.int8.onnx"}
    if graphs["int8"].is_file():
        return graphs
    print(f"making {name}", file=sys.stderr, flush=True)
    with TemporaryDirectory() as scratch:
        checkpoint = REAL["minilm"].write(VARIANTS[name], Path(scratch) / "checkpoint")
        export_checkpoint(checkpoint, graphs["float"], force=True)
    batches = graph_inputs(graphs["float"]).random_batches(batches=2, batch_size=4, seed=0)
    data = {"kind": RANDOM_KIND}
    cache = calibrate(graphs["float"], batches, method="minmax", data=data, seed=0, allow_random=True)
    quantize(graphs["float"], cache, graphs["int8"], profile="tensorrt")
    return graphs


def measure(
    graphs: dict[str, dict[str, Path]],
    backend: str,
    precision: str,
    shape: tuple[int, int],
    arguments: argparse.Namespace,
) -> list[dict[str, Any]]:
    """Rows of one backend and precision, every variant in turns."""
    generator = np.random.default_rng(0)
    feeds = {
        "input_ids": generator.integers(1000, 20000, shape).astype(np.int64),
        "attention_mask": np.ones(shape, np.int64),
        "token_type_ids": np.zeros(shape, np.int64),
    }
    with ExitStack() as stack:
        candidates = [
            Candidate(
                name=name,
                backend=stack.enter_context(open_backend(backend, each[precision], threads=arguments.threads)),
                precision=precision,
            )
            for name, each in graphs.items()
        ]
        report = bench(
            candidates, feeds, baseline="vanilla", repeats=arguments.repeats, seconds=arguments.seconds, round_seconds=0.1,
            progress=lambda line: print(f"{backend} {precision}: {line}", file=sys.stderr, flush=True),
        )  # fmt: skip
    rows = []
    for timing in report.timings:
        row: dict[str, Any] = {"backend": backend, "precision": precision, "shape": "x".join(map(str, shape))}
        row |= {"variant": timing.name, "median_ms": round(timing.latency_ms.median, 3)}
        if timing.speed_up is not None:
            gain = timing.speed_up
            row |= {"against_vanilla": 1 / gain.ratio, "low": 1 / gain.high, "high": 1 / gain.low}
        rows.append(row)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Time against vanilla with its interval, a row per variant."""
    cells = []
    for row in rows:
        share = f"{row['against_vanilla']:.3f} ({row['low']:.3f} to {row['high']:.3f})" if "low" in row else ""
        cells.append((row["backend"], row["precision"], row["variant"], row["shape"], f"{row['median_ms']:.2f}", share))
    header = ("Backend", "Precision", "Variant", "Shape", "ms", "Time against vanilla (95 %)")
    return terminal_table(Table(header=header, rows=tuple(cells), text_columns=4))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder that keeps the graphs")
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument(
        "--backends", nargs="+", choices=["openvino", "onnxruntime"], default=["openvino", "onnxruntime"]
    )
    parser.add_argument("--shape", default="1x128", help="batch and length")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="recorded per variant and repeat")
    arguments = parser.parse_args()
    batch, length = map(int, arguments.shape.split("x"))
    graphs = {name: make_graphs(name, arguments.out / name.replace(" ", "-")) for name in arguments.variants}
    rows = [
        row
        for backend in arguments.backends
        for precision in ("float", "int8")
        for row in measure(graphs, backend, precision, (batch, length), arguments)
    ]
    print(table(rows))
    facts = {"benchmark": "attention_latency", "threads": arguments.threads, "rows": rows}
    print(json.dumps(facts | {"machine": asdict(machine_facts())}))


if __name__ == "__main__":
    main()
