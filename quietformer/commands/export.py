"""``quietformer export``: a checkpoint as an ONNX graph, checked against PyTorch."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Lowering(StrEnum):
    """Forms of clipped softmax and gates in the graph."""

    FOLDED = "folded"
    LITERAL = "literal"


def export(
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="Checkpoint folder.")],
    *,
    out: Annotated[Path, typer.Option("--out", metavar="MODEL.onnx", help="The graph to write.")],
    length: Annotated[str, typer.Option("--length", metavar="N|dynamic", help="Static length in tokens.")] = "dynamic",
    lowering: Annotated[
        Lowering, typer.Option("--lowering", help="Scales folded into weights, or the formula as it stands.")
    ] = Lowering.FOLDED,
    opset: Annotated[int, typer.Option("--opset", help="ONNX operator set, 17 to 23.")] = 20,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
) -> None:
    """Write a checkpoint as a checked ONNX graph.

    Standard operators only, one attention per layer, outputs compared with PyTorch at shapes that were not traced.

    Example: quietformer export runs/demo/checkpoint --out model.onnx --length dynamic
    """
    from export.to_onnx import export_checkpoint
    from quietformer.progress import progress

    with progress("export"):
        report = export_checkpoint(
            checkpoint, out, length=parse_length(length), lowering=lowering.value, opset=opset, force=force
        )
    typer.echo(f"{out}: {report}")


def parse_length(text: str) -> int | None:
    """Static length, None for ``dynamic``.

    Raises:
        ValueError: neither a positive number nor ``dynamic``.
    """
    if text == "dynamic":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"length '{text}' is neither a number of tokens nor 'dynamic'")
    return int(text)
