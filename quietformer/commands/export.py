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


class Dtype(StrEnum):
    """Types of weights and activations."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"


class Ids(StrEnum):
    """Types of token ids and masks."""

    INT64 = "int64"
    INT32 = "int32"


def export(
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT", help="Checkpoint folder, GGUF file, or package:NAME of a package that holds one."
        ),
    ],
    *,
    out: Annotated[Path, typer.Option("--out", metavar="MODEL.onnx", help="The graph to write.")],
    length: Annotated[str, typer.Option("--length", metavar="N|dynamic", help="Static length in tokens.")] = "dynamic",
    lowering: Annotated[
        Lowering, typer.Option("--lowering", help="Scales folded into weights, or the formula as it stands.")
    ] = Lowering.FOLDED,
    opset: Annotated[int, typer.Option("--opset", help="ONNX operator set, 17 to 23.")] = 20,
    dtype: Annotated[
        Dtype, typer.Option("--dtype", help="float16: weights and activations, float32 where float16 is too coarse.")
    ] = Dtype.FLOAT32,
    ids: Annotated[Ids, typer.Option("--ids", help="Type of the integer inputs.")] = Ids.INT64,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
) -> None:
    """Write a checkpoint as a checked ONNX graph.

    Standard operators only, one attention per layer, outputs compared with PyTorch at shapes that were not traced.

    A float16 graph is for GPUs; calibrate the float32 graph of the same checkpoint and quantize either with its ranges.

    Example: quietformer export runs/demo/checkpoint --out model.onnx --length dynamic
    """
    from export.to_onnx import export_checkpoint
    from quietformer.progress import progress
    from train.checkpoints.checkpoint_location import resolve_checkpoint

    with progress("export"):
        report = export_checkpoint(
            resolve_checkpoint(checkpoint),
            out,
            length=parse_length(length),
            lowering=lowering.value,
            opset=opset,
            ids=ids.value,
            dtype=dtype.value,
            force=force,
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
