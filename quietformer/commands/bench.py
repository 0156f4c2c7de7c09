"""``quietformer bench``: interleaved latency of graphs and backends."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quietformer.commands.backend_options import BenchBackend, usual_backend_told


def bench(
    artifacts: Annotated[
        list[Path],
        typer.Argument(metavar="ARTIFACT...", help="Graphs, or folders of engines; the first is the baseline."),
    ],
    *,
    backends: Annotated[
        list[BenchBackend] | None,
        typer.Option(
            "--backend",
            help="Where every artifact runs; repeat to compare. openvino by default, onnxruntime for integers on x86 without VNNI.",
        ),
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

    The same inputs for all, which must take them, without padding: a table, then one line of JSON. Engines are timed by their GPU, per request
    and back to back, with and without a CUDA graph.

    Example: quietformer bench model.onnx model.int8.onnx --backend openvino --backend onnxruntime --shapes 1x128

    Example: quietformer bench engines/float16 engines/int8 --backend tensorrt --shapes 1x128 --shapes 8x128
    """
    import json

    from deploy.backends.opening import require_devices
    from deploy.files import refuse_existing, refuse_own_input, write_atomically
    from quietformer.graph_data.graph_inputs import graph_inputs
    from quietformer.latency_measurement import Measured, measure_latency, refuse_other_inputs
    from quietformer.progress import progress
    from quietformer.report.latency_tables import latency_table
    from quietformer.terminal_table import terminal_table

    names = [backend.value for backend in backends or ()] or [usual_backend_told(artifacts)]
    require_devices(names)
    if json_file is not None:
        refuse_own_input(json_file, [*artifacts, data])
        refuse_existing(json_file, force=force)
    # Two folders may hold a model.onnx each.
    same_name = len({artifact.name for artifact in artifacts}) < len(artifacts)
    inputs = graph_inputs(artifacts[0])
    batches = [inputs.full_batch(data, shape) for shape in shapes or [inputs.usual_shape]]
    refuse_other_inputs(artifacts, batches)
    parts = [
        Measured(name=f"{artifact if same_name else artifact.name}, {name}", backend=name, artifact=artifact)
        for name in names
        for artifact in artifacts
    ]
    with progress("bench") as job:
        reports = measure_latency(parts, batches, repeats=repeats, seconds=seconds, threads=threads, job=job)
    for report in reports:
        typer.echo(terminal_table(latency_table(report)))
        for warning in report.warnings:
            typer.echo(f"warning: {warning}", err=True)
        for verdict in report.verdicts:
            typer.echo(verdict)
    line = json.dumps([report.to_dict() for report in reports])
    typer.echo(line)
    if json_file is not None:
        write_atomically(json_file, line + "\n")
