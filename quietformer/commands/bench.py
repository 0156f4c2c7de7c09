"""``quietformer bench``: interleaved latency of graphs and backends."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class BenchBackend(StrEnum):
    """Backends that run on a CPU."""

    OPENVINO = "openvino"
    ONNXRUNTIME = "onnxruntime"


def bench(
    artifacts: Annotated[list[Path], typer.Argument(metavar="ARTIFACT...", help="Graphs; the first is the baseline.")],
    *,
    backends: Annotated[
        list[BenchBackend] | None,
        typer.Option("--backend", help="Where every graph runs; repeat to compare backends. openvino by default."),
    ] = None,
    shapes: Annotated[
        list[str] | None,
        typer.Option("--shapes", metavar="BxT|B", help="Batch and length, or batch of images, repeatable. 1x128 or 1."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="PATH", help="Texts or images to feed; a shipped sample or noise by default."),
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", help="Measured time per candidate and repeat.")] = 3.0,
    repeats: Annotated[int, typer.Option("--repeats", help="Independent repeats.")] = 3,
    threads: Annotated[int | None, typer.Option("--threads", help="Threads per backend; all cores by default.")] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the report here.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Measure latency of candidates in turns.

    The same inputs for all, without padding: a table, then one line of JSON.

    Example: quietformer bench model.onnx model.int8.onnx --backend openvino --backend onnxruntime --shapes 1x128
    """
    import json
    from contextlib import ExitStack

    from deploy.backends.opening import open_backend
    from deploy.files import refuse_existing, refuse_own_input, write_atomically
    from deploy.measuring.bench import Candidate
    from deploy.measuring.bench import bench as measure
    from quietformer.graph_data.graph_inputs import graph_inputs
    from quietformer.progress import progress
    from quietformer.report.tables import latency_table
    from quietformer.terminal_table import terminal_table

    if json_file is not None:
        refuse_own_input(json_file, [*artifacts, data])
        refuse_existing(json_file, force=force)
    # Two folders may hold a model.onnx each.
    same_name = len({artifact.name for artifact in artifacts}) < len(artifacts)
    inputs = graph_inputs(artifacts[0])
    batches = [inputs.full_batch(data, shape) for shape in shapes or [inputs.usual_shape]]
    reports = []
    with ExitStack() as stack, progress("bench") as job:
        candidates, stacked = [], []
        for backend in backends or [BenchBackend.OPENVINO]:
            for artifact in artifacts:
                opened = stack.enter_context(open_backend(backend.value, artifact, threads=threads))
                stacked.append(opened)
                name = f"{artifact if same_name else artifact.name}, {backend.value}"
                candidates.append(Candidate(name=name, backend=opened, precision=opened.precision))
        for feeds in batches:
            for opened in stacked:
                opened.fix_shapes(feeds)
            reports.append(measure(candidates, feeds, repeats=repeats, seconds=seconds, progress=job.tell))
    for report in reports:
        typer.echo(terminal_table(latency_table(report)))
        for warning in report.warnings:
            typer.echo(f"warning: {warning}", err=True)
    line = json.dumps([report.to_dict() for report in reports])
    typer.echo(line)
    if json_file is not None:
        write_atomically(json_file, line + "\n")
