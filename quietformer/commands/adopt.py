"""``quietformer adopt``: a graph that another tool exported, taken over."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class TaskOfTexts(StrEnum):
    """What the output of a graph of texts means."""

    FEATURES = "feature-extraction"
    FILL_MASK = "fill-mask"
    CLASSES = "text-classification"
    GENERATION = "text-generation"


class PoolingChoice(StrEnum):
    """How token features become one embedding."""

    MEAN = "mean"
    CLS = "cls"


def adopt(
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="Float32 graph of any exporter, opset 13 to 23.")],
    *,
    out: Annotated[Path, typer.Option("--out", metavar="MODEL.onnx", help="The graph to write.")],
    tokenizer: Annotated[
        Path | None, typer.Option("--tokenizer", metavar="FILE", help="tokenizer.json: the graph reads texts.")
    ] = None,
    task: Annotated[
        TaskOfTexts, typer.Option("--task", help="What the output of a graph of texts means.")
    ] = TaskOfTexts.FEATURES,
    pooling: Annotated[
        PoolingChoice | None, typer.Option("--pooling", help="How token features become one embedding.")
    ] = None,
    max_length: Annotated[
        int | None, typer.Option("--max-length", min=1, help="Positions, where the graph does not show them.")
    ] = None,
    preprocessing: Annotated[
        Path | None,
        typer.Option(
            "--preprocessing", metavar="FILE", help="What preprocessor_config.json holds: the graph reads images."
        ),
    ] = None,
    rename: Annotated[
        list[str] | None,
        typer.Option("--rename", metavar="OLD=NEW", help="New name of an input or output; repeatable."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Take over a graph of another tool.

    Folds constants, names nodes and writes down what calibrate, quantize, bench and compare must know; what it computes stays
    the same and is checked. Without tokenizer and preprocessing the graph reads arrays: --data X.npz.

    Example: quietformer adopt bert.onnx --out model.onnx --tokenizer tokenizer.json --pooling mean
    """
    from quietformer.graph_adoption import adopt as take_over
    from quietformer.progress import progress

    names: dict[str, str] = {}
    for entry in rename or []:
        old, mark, new = entry.partition("=")
        if not (old and mark and new) or old in names:
            raise ValueError(f"--rename '{entry}' is not OLD=NEW, once for each name")
        names[old] = new
    with progress("adopt") as job:
        done = take_over(
            model,
            out,
            tokenizer=tokenizer,
            task=task.value,
            pooling=pooling.value if pooling else None,
            max_length=max_length,
            preprocessing=preprocessing,
            rename=names,
            force=force,
            progress=job.tell,
        )
    difference = done.largest_difference
    same = "identical to the source's" if not difference else f"within {difference:.1e} of the largest of the source's"
    typer.echo(f"{out}: reads {done.info.reads}; outputs {same} on a made-up batch")
    layers = done.info.num_layers
    if layers:
        typer.echo(f"  {layers} attention layer{'s' * (layers > 1)} recognised")
    else:
        typer.echo(
            "  attention not recognised: its products stay float in every profile, linear layers become integers"
        )
    for what, count in done.changes.items():
        typer.echo(f"  {count} {what}")
    data = {"tokens": "texts.txt", "pixels": "IMAGES", "arrays": "X.npz"}[done.info.reads]
    typer.echo(f"next: quietformer calibrate {out} --data {data} --out {out.with_name('calibration.json')}")
