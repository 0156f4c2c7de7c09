"""Fixes that need no training beside a retrofit, in one harness: STS-B in integers, sites in float and latency of every row.

Example: python benchmarks/rival_fixes.py --model vanilla=original.onnx --model retrofit=retrofitted.onnx --calibration texts.jsonl
             --task-data sts-dev.csv --float-sites float-sites.txt --profile paper --out runs/fixes

Every row of a model has the same calibration batches; ranges are running min-max unless the row says otherwise. Stage ``judge``
writes and judges the graphs and goes on where it was stopped; stage ``time`` measures all of them in turns.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx

from deploy.backends.opening import open_backend
from deploy.calibration.calibrate import calibrate
from deploy.calibration.calibration_cache import CalibrationCache
from deploy.calibration.calibration_subset import Batch
from deploy.calibration.ranges import method_parameters
from deploy.files import write_atomically
from deploy.graphs.graph_info import read_info
from deploy.graphs.graph_structure import load_graph
from deploy.graphs.site_choice import SiteChoice
from deploy.machine import machine_facts
from deploy.measuring.bench import Candidate, bench
from deploy.quantization.bias_correction import correct_biases, corrected_layers
from deploy.quantization.channel_statistics import ChannelStatistics, channel_statistics
from deploy.quantization.quantize import quantize
from deploy.quantization.smoothing import smooth, smoothed_tensors
from deploy.quantization.stored_weights import WeightRanges
from quietformer.commands.site_options import SwitchChoice, site_choice
from quietformer.graph_data.graph_inputs import graph_inputs
from quietformer.graph_data.task_opening import open_task
from quietformer.report.tables import Table
from quietformer.terminal_table import terminal_table

_LENGTH = 128
_BATCH = 16
_SHAPES = ("1x32", "8x128")
_STAGES = ("judge", "time")


@dataclass(frozen=True, kw_only=True, slots=True)
class Fix:
    """What a row changes about plain W8A8."""

    method: str = "running-minmax"
    """Of the ranges of activations."""
    weights: WeightRanges = "minmax"
    alpha: float | None = None
    """Of SmoothQuant; None leaves it out."""
    bias: bool = False
    """Correct biases for what rounding the weights adds to the mean outputs."""
    choice: SiteChoice | None = None


FIXES: dict[str, Fix] = {
    "none": Fix(),
    "SmoothQuant 0.5": Fix(alpha=0.5),
    "bias correction": Fix(bias=True),
    "per-channel weights": Fix(weights="per-channel"),
    "mse weights": Fix(weights="mse"),
    "percentile ranges": Fix(method="percentile"),
    "mse ranges": Fix(method="mse"),
    "SmoothQuant 0.5 + per-channel + bias": Fix(alpha=0.5, weights="per-channel", bias=True),
}
SWITCHES: dict[str, Fix] = {
    "bmms on": Fix(choice=SiteChoice(bmms="on")),
    "residual adds on": Fix(choice=SiteChoice(residual_adds="on")),
    "bmms and residual adds on": Fix(choice=SiteChoice(bmms="on", residual_adds="on")),
}
"""For profiles that leave these in float."""
FALLBACK = "float sites of explain"


class Subject:
    """A float graph with what is measured on it only once."""

    def __init__(self, graph: Path, batches: list[Batch], *, threads: int | None) -> None:
        self.graph, self.batches, self.threads = graph, batches, threads

    @cached_property
    def cache(self) -> CalibrationCache:
        """Statistics that every method can choose a range from."""
        return calibrate(
            self.graph, self.batches, method="mse", data={"kind": "benchmark"}, seed=0, threads=self.threads
        )

    @cached_property
    def biased(self) -> dict[str, ChannelStatistics]:
        """Mean inputs of the layers whose biases can be corrected."""
        names = sorted({layer.input for layer in corrected_layers(load_graph(self.graph))})
        return channel_statistics(self.graph, names, self.batches, threads=self.threads)

    def smoothed(self, alpha: float, out: Path) -> Subject:
        """The same model after SmoothQuant, written to ``out``."""
        model = load_graph(self.graph)
        smooth(
            model,
            channel_statistics(self.graph, list(smoothed_tensors(model)), self.batches, threads=self.threads),
            alpha=alpha,
        )
        onnx.save(model, out)
        return Subject(out, self.batches, threads=self.threads)

    def write(self, fix: Fix, out: Path, *, profile: str) -> int:
        """Quantize with a fix; returns how many sites are in integers."""
        cache = replace(self.cache, method=fix.method, parameters=method_parameters(fix.method))
        summary = quantize(self.graph, cache, out, profile=profile, weights=fix.weights, choice=fix.choice, force=True)
        if fix.bias:
            quantized = load_graph(out)
            correct_biases(load_graph(self.graph), quantized, self.biased)
            onnx.save(quantized, out)
        return len(summary.sites)


def judge_rows(given: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    """Write and judge every row that is not there yet."""
    done = {(row["model"], row["profile"], row["fix"]) for row in rows}
    for label, graph, alone in [(*entry, False) for entry in given.model] + [(*entry, True) for entry in given.alone]:
        inputs = graph_inputs(graph, length=min(_LENGTH, read_info(graph).max_length))
        drawn, _ = inputs.calibration_batches(given.calibration, batches=given.batches, batch_size=_BATCH, seed=0)
        subject = Subject(graph, [dict(batch) for batch in drawn], threads=given.threads)
        smoothed: dict[float, Subject] = {}
        with open_backend("onnxruntime", graph, threads=given.threads) as reference:
            task, _ = open_task("sts", graph, given.task_data, float_infer=reference.infer, limit=given.limit)
            if (label, "", "float32") not in done:
                score = task.evaluate(reference.infer).score
                _add(given.out, rows, model=label, profile="", fix="float32", score=score, path=str(graph))
        for profile in given.profile or ["paper"]:
            full = 0
            for name, fix in _fixes(given, profile, alone=alone).items():
                if (label, profile, name) in done:
                    full = full or next(
                        row["sites"]
                        for row in rows
                        if (row["model"], row["profile"], row["fix"]) == (label, profile, name)
                    )
                    continue
                path = given.out / f"{label}.{profile}.{name.replace(' ', '-')}.onnx"
                source = subject
                if fix.alpha is not None:
                    if fix.alpha not in smoothed:
                        smoothed[fix.alpha] = subject.smoothed(fix.alpha, given.out / f"{label}.smoothed.onnx")
                    source = smoothed[fix.alpha]
                try:
                    sites = source.write(fix, path, profile=profile)
                except ValueError as error:  # for example a float site that this model does not have
                    print(f"{label}, {profile}, {name}: {error}", file=sys.stderr, flush=True)
                    continue
                full = full or sites
                with open_backend("onnxruntime", path, threads=given.threads) as opened:
                    score = task.evaluate(opened.infer).score
                _add(
                    given.out,
                    rows,
                    model=label,
                    profile=profile,
                    fix=name,
                    score=score,
                    sites=sites,
                    float_sites=max(0, full - sites),
                    path=str(path),
                )


def time_rows(given: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    """Median latency of every row, in turns."""
    inputs = graph_inputs(Path(rows[0]["path"]))
    for shape in given.shapes:
        feeds = inputs.full_batch(None, shape)
        with ExitStack() as stack:
            candidates = []
            for number, row in enumerate(rows):
                opened = stack.enter_context(open_backend("onnxruntime", Path(row["path"]), threads=given.threads))
                opened.fix_shapes(feeds)
                candidates.append(Candidate(name=str(number), backend=opened))
            report = bench(
                candidates, feeds, repeats=given.repeats, seconds=given.seconds, warmup_seconds=0.05, round_seconds=0.1
            )
        for row, timing in zip(rows, report.timings, strict=True):
            row.setdefault("median_ms", {})[shape] = round(timing.latency_ms.median, 2)


def _fixes(given: argparse.Namespace, profile: str, *, alone: bool) -> dict[str, Fix]:
    if alone:
        return {"none": FIXES["none"]}
    own = {} if profile == "paper" else dict(SWITCHES)
    if given.float_sites is not None:
        unchanged = SwitchChoice.PROFILE
        choice = site_choice(
            exclude=[str(given.float_sites)],
            include=None,
            bmms=unchanged,
            residual_adds=unchanged,
            gate_path=unchanged,
        )
        own[FALLBACK] = Fix(choice=choice)
    return {name: fix for name, fix in (FIXES | own).items() if not given.fix or name in given.fix}


def _add(out: Path, rows: list[dict[str, Any]], **row: Any) -> None:
    rows.append(row)
    print({name: value for name, value in row.items() if name != "path"}, file=sys.stderr, flush=True)
    _save(out, rows)


def _save(out: Path, rows: list[dict[str, Any]]) -> None:
    content = {"machine": asdict(machine_facts()), "rows": rows}
    write_atomically(out / "rival-fixes.json", json.dumps(content, indent=1) + "\n")


def _table(rows: list[dict[str, Any]]) -> str:
    shapes = list(rows[0].get("median_ms", {}))
    lines = [
        (
            row["model"],
            row["profile"],
            row["fix"],
            f"{row['score']:.4f}",
            str(row.get("sites", "")),
            str(row.get("float_sites", "")),
            *(f"{row['median_ms'][shape]:.2f}" for shape in shapes),
        )
        for row in rows
    ]
    header = ("model", "profile", "fix", "Spearman", "in integers", "in float", *(f"ms {shape}" for shape in shapes))
    return terminal_table(Table(header=header, rows=tuple(lines), text_columns=3))


def _labelled(text: str) -> tuple[str, Path]:
    label, separator, path = text.partition("=")
    if not separator or not label or not path:
        raise argparse.ArgumentTypeError(f"'{text}' is no LABEL=GRAPH")
    return label, Path(path)


def main() -> None:
    """Print a line per model, profile and fix, and write ``rival-fixes.json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", default=[], type=_labelled, help="LABEL=GRAPH, float; repeatable")
    parser.add_argument("--alone", action="append", default=[], type=_labelled, help="the same, judged without any fix")
    parser.add_argument("--calibration", help="texts, never those of the task")
    parser.add_argument("--task-data", help="scored sentence pairs")
    parser.add_argument("--float-sites", type=Path, help="list that 'quietformer explain' wrote for the profile")
    parser.add_argument("--profile", action="append", help="paper by default; repeatable")
    parser.add_argument("--fix", action="append", help="all by default; repeatable, by the names in the table")
    parser.add_argument("--batches", type=int, default=16, help=f"of {_BATCH} texts")
    parser.add_argument("--limit", type=int, help="so many pairs, drawn at random")
    parser.add_argument("--threads", type=int, help="of ONNX Runtime; its own choice by default")
    parser.add_argument("--shapes", nargs="*", default=_SHAPES)
    parser.add_argument("--seconds", type=float, default=0.5, help="measured time per row, shape and repeat")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--stage", choices=("all", *_STAGES), default="all", help="one part alone, on what is there")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    record = given.out / "rival-fixes.json"
    rows: list[dict[str, Any]] = json.loads(record.read_text("utf-8"))["rows"] if record.exists() else []
    stages = _STAGES if given.stage == "all" else (given.stage,)
    if "judge" in stages:
        if not (given.model or given.alone) or not given.calibration or not given.task_data:
            parser.error("stage 'judge' needs --model, --calibration and --task-data")
        judge_rows(given, rows)
    labels = [row["model"] for row in rows]
    rows.sort(
        key=lambda row: (labels.index(row["model"]), row["profile"])
    )  # rows that were added later, to their model
    if "time" in stages:
        time_rows(given, rows)
    _save(given.out, rows)
    print(_table(rows))


if __name__ == "__main__":
    main()
