"""``quietformer build``: an engine from a quantized graph."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class EngineBackend(StrEnum):
    """What engines are built for."""

    TENSORRT_RTX = "tensorrt-rtx"


def build(
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="Graph of the 'tensorrt' profile.")],
    *,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the engine and engine.json.")],
    backend: Annotated[
        EngineBackend, typer.Option("--backend", help="What to build for.")
    ] = EngineBackend.TENSORRT_RTX,
    min_shapes: Annotated[
        str | None, typer.Option("--min-shapes", metavar="SHAPES", help="Smallest shapes: 1x1, or 1 image.")
    ] = None,
    opt_shapes: Annotated[
        str | None,
        typer.Option(
            "--opt-shapes", metavar="SHAPES", help="Shapes it is fastest at, for all inputs or per input: 1x128, or 1."
        ),
    ] = None,
    max_shapes: Annotated[
        str | None, typer.Option("--max-shapes", metavar="SHAPES", help="Largest shapes: 8x512, or 8 images.")
    ] = None,
    compute_capabilities: Annotated[
        list[str] | None,
        typer.Option("--compute-capability", metavar="SM", help="Target, repeatable; 8.0 and 8.9 by default."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing engine.")] = False,
) -> None:
    """Build an engine from a quantized graph.

    Parsing and building need no GPU; running the engine does.

    Shapes are BATCHxLENGTH, of images BATCH, or input_ids:1x128,attention_mask:1x128,...

    Example: quietformer build model.int8.onnx --out engine --opt-shapes 1x128 --compute-capability 8.9
    """
    from quietformer.engine_build import build_from_texts
    from quietformer.progress import progress

    assert backend is EngineBackend.TENSORRT_RTX
    with progress("build") as job:
        report = build_from_texts(
            model,
            out,
            compute_capabilities=compute_capabilities or ["8.0", "8.9"],
            smallest=min_shapes,
            usual=opt_shapes,
            largest=max_shapes,
            force=force,
            job=job,
        )
    for warning in report.warnings:
        typer.echo(f"warning: {warning}", err=True)
    typer.echo(
        f"{out / report.engine}: {report.engine_bytes / 1e6:.1f} MB for SM {', '.join(report.compute_capabilities)}, "
        f"parsed in {report.parse_seconds:.1f} s, built in {report.build_seconds:.1f} s"
    )
    typer.echo(report.not_done)
