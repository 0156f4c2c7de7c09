"""Does TensorRT-RTX build every family in every variant, float16 and INT8, for every target? Needs no GPU, runs no engine.

    python benchmarks/rtx_builds.py --out runs/rtx                     # all of it; run again to resume
    python benchmarks/rtx_builds.py --out runs/rtx --model bert --model vit --variant vanilla/none

A case is a model, a softmax with a gate, and targets. Its float32 graph is exported with every check of ``quietformer export`` and
calibrated on random input, since no accuracy is measured; float16 and INT8 (profile ``tensorrt``) engines are built from it as
``quietformer build`` builds them, for batches and lengths that are free within a profile. Small models are built for all targets in one engine,
those of real shape also for each alone. A finished case is a JSON file that is not made again. Prints a table, then one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx

from benchmarks.rtx_models import REAL, SMALL, Subject
from deploy.backends.artifact import input_shapes
from deploy.backends.engine_builder import build_engine
from deploy.backends.engine_report import EngineReport
from deploy.backends.engine_targets import USUAL_TARGETS
from deploy.backends.tensorrt_dialect import load_dialect
from deploy.calibration.calibrate import RANDOM_KIND, calibrate
from deploy.files import write_atomically
from deploy.graphs.graph_info import read_info
from deploy.graphs.graph_structure import read_outline
from deploy.graphs.graph_writing import checked_before_replacing
from deploy.graphs.shapes import parse_shapes
from deploy.machine import machine_facts
from deploy.quantization.lint import lint
from deploy.quantization.quantize import quantize
from export.half_precision import half_graph
from export.to_onnx import export_checkpoint
from quietformer.graph_data.graph_inputs import graph_inputs
from quietformer.report.tables import Table
from quietformer.terminal_table import terminal_table
from tests.export.tiny_checkpoints import GATES, settings

BACKEND = "tensorrt-rtx"

SOFTMAX_KINDS = ("vanilla", "clipped", "clipped-per-row", "off-by-one")
ALL_VARIANTS = tuple((softmax, gate) for softmax in SOFTMAX_KINDS for gate in GATES)
REAL_VARIANTS = (("vanilla", "none"), ("vanilla", "linear"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One model in one variant."""

    model: str
    softmax: str
    gate: str

    @property
    def variant(self) -> str:
        """As ``--variant`` names it."""
        return f"{self.softmax}/{self.gate}"

    @property
    def file(self) -> str:
        """Of its result."""
        return f"{self.model}_{self.softmax}_{self.gate}.json"

    @property
    def subject(self) -> Subject:
        """The model itself."""
        return {**SMALL, **REAL}[self.model]

    @property
    def targets(self) -> tuple[tuple[str, ...], ...]:
        """Targets of each engine."""
        alone = tuple((target,) for target in USUAL_TARGETS) if self.model in REAL else ()
        return (USUAL_TARGETS, *alone)


def cases(models: list[str], variants: list[str]) -> Iterator[Case]:
    """The matrix, as far as it is asked for; every model in its first variant before any in its second, those of real shape last."""
    for group, kinds in ((SMALL, ALL_VARIANTS), (REAL, REAL_VARIANTS)):
        for softmax, gate in kinds:
            for model in group:
                case = Case(model=model, softmax=softmax, gate=gate)
                if (not models or model in models) and (not variants or case.variant in variants):
                    yield case


def run_case(case: Case, scratch: Path) -> dict[str, Any]:
    """Export, calibrate, quantize and build.

    Args:
        case: which model, in which variant.
        scratch: empty folder.

    Returns:
        Plain values: what the case is, ``export_seconds``, and ``engines`` with one entry per engine; of a step that is refused
        ``error``, in its own words.
    """
    started = time.perf_counter()
    checkpoint = case.subject.write(settings(case.softmax, case.gate), scratch / "checkpoint")
    graph = export_checkpoint(checkpoint, scratch / "graph" / "model.onnx").path
    half, integers = (graph.with_name(f"model.{name}.onnx") for name in ("fp16", "fp16.int8"))
    with checked_before_replacing(half_graph(onnx.load(graph), read_info(graph)), half):
        pass
    batches = graph_inputs(graph).random_batches(batches=1, batch_size=2, seed=0)
    data = {"kind": RANDOM_KIND}
    cache = calibrate(graph, batches, method="minmax", data=data, seed=0, allow_random=True, threads=1)
    summary = quantize(half, cache, integers, profile="tensorrt")
    findings = [str(finding) for finding in lint(integers, "tensorrt")]
    exported = time.perf_counter() - started
    engines = [
        engine_row(_build(case, source, scratch / f"{name}-{place}", targets), name)
        for place, targets in enumerate(case.targets)
        for name, source in (("float16", half), ("int8", integers))
    ]
    return asdict(case) | {
        "export_seconds": round(exported, 2),
        "findings": findings,
        "float_linears": summary.float_linears,
        "engines": engines,
    }


def _build(case: Case, graph: Path, folder: Path, targets: tuple[str, ...]) -> EngineReport:
    sizes = input_shapes(read_outline(graph))
    shapes = case.subject.shapes
    return build_engine(
        graph,
        folder,
        backend=BACKEND,
        compute_capabilities=targets,
        min_shapes=parse_shapes(shapes.smallest, sizes),
        opt_shapes=parse_shapes(shapes.usual, sizes),
        max_shapes=parse_shapes(shapes.largest, sizes),
    )


def engine_row(report: EngineReport, name: str) -> dict[str, Any]:
    """What the record keeps of an ``engine.json``."""
    return {
        "engine": name,
        "targets": report.compute_capabilities,
        "precision": report.precision,
        "int8_share": round(report.eight_bit_share, 4),
        "products": report.products,
        "megabytes": round(report.engine_bytes / 1e6, 3),
        "onnx_megabytes": round(report.onnx_bytes / 1e6, 3),
        "parse_seconds": round(report.parse_seconds, 2),
        "build_seconds": round(report.build_seconds, 2),
        "profile": report.profile,
        "warnings": report.warnings,
    }


def finish(wanted: list[Case], out: Path) -> list[dict[str, Any]]:
    """Results of every case, from their files or made now; a refused one is tried again each time."""
    version = load_dialect(BACKEND).version
    results = []
    for number, case in enumerate(wanted, start=1):
        file = out / case.file
        if file.is_file():
            result = json.loads(file.read_text(encoding="utf-8"))
            if result["version"] == version:
                results.append(result)
                continue
        print(f"{number}/{len(wanted)} {case.model} {case.variant}", file=sys.stderr, flush=True)
        with TemporaryDirectory() as scratch:
            try:
                result = run_case(case, Path(scratch)) | {"version": version}
            except (ValueError, OSError) as error:
                print(f"  refused: {error}", file=sys.stderr, flush=True)
                results.append(asdict(case) | {"version": version, "error": str(error)})
                continue
        out.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(result, indent=1) + "\n")
        results.append(result)
    return results


def table(results: list[dict[str, Any]]) -> str:
    """One row per model, precision and set of targets, over all variants."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for result in results:
        for engine in result.get("engines", ()):
            key = (result["model"], engine["engine"], " ".join(engine["targets"]))
            groups.setdefault(key, []).append(engine)
    rows = [
        (
            *key,
            str(len(engines)),
            span([100 * engine["int8_share"] for engine in engines], "{:.0f}"),
            span([engine["megabytes"] for engine in engines], "{:.2f}"),
            span([engine["build_seconds"] for engine in engines], "{:.1f}"),
        )
        for key, engines in groups.items()
    ]
    header = ("Model", "Engine", "SM", "Built", "INT8 weights, %", "MB", "Seconds")
    return terminal_table(Table(header=header, rows=tuple(rows), text_columns=3))


def span(values: list[float], form: str) -> str:
    """Least and greatest, or the one value."""
    low, high = form.format(min(values)), form.format(max(values))
    return low if low == high else f"{low} to {high}"


def main() -> None:
    """Entry point."""
    first, _, rest = str(__doc__).partition("\n\n")
    parser = argparse.ArgumentParser(
        description=first, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="Folder for the result of each case.")
    parser.add_argument("--model", action="append", choices=[*SMALL, *REAL], default=[], help="Repeatable; all.")
    names = [f"{softmax}/{gate}" for softmax, gate in ALL_VARIANTS]
    parser.add_argument("--variant", action="append", choices=names, default=[], help="SOFTMAX/GATE, repeatable; all.")
    chosen = parser.parse_args()
    results = finish(list(cases(chosen.model, chosen.variant)), chosen.out)
    print(table(results))
    refused = [result for result in results if "error" in result]
    for result in refused:
        print(f"refused: {result['model']} {result['softmax']}/{result['gate']}: {result['error']}")
    print(json.dumps({"machine": asdict(machine_facts()), "cases": results}))
    sys.exit(1 if refused else 0)


if __name__ == "__main__":
    main()
