"""``quietformer calibrate``: ranges of a float graph's activations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def calibrate(
    context: typer.Context,
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="Float graph, as exported.")],
    *,
    out: Annotated[Path, typer.Option("--out", metavar="calibration.json", help="The cache to write.")],
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="PATH",
            help="Texts or images, as the graph reads, never those of the evaluation; or a set.npz.",
        ),
    ] = None,
    foreign: Annotated[
        Path | None,
        typer.Option(
            "--import",
            metavar="FILE",
            help="Take the ranges of another tool instead: TensorRT's text cache, or ONNX Runtime's JSON table.",
        ),
    ] = None,
    random: Annotated[
        bool,
        typer.Option("--random", help="Random ids or noise instead: marks every later artifact as not for accuracy."),
    ] = False,
    method: Annotated[
        str,
        typer.Option(
            "--method",
            metavar="METHOD[:VALUE]",
            help="How ranges are chosen: running-minmax[:momentum], minmax, percentile[:percent], mse or entropy.",
        ),
    ] = "running-minmax",
    method_of: Annotated[
        list[str] | None,
        typer.Option(
            "--method-of",
            metavar="PATTERN=METHOD",
            help="Another method for some tensors: kind:context=percentile:99.9. Repeatable.",
        ),
    ] = None,
    batches: Annotated[int, typer.Option("--batches", min=1, help="Batches to run.")] = 16,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Texts or images per batch.")] = 16,
    length: Annotated[
        int | None, typer.Option("--length", min=1, help="Cut texts to so many tokens; 128 by default.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Chooses the texts or images.")] = 0,
    column: Annotated[str | None, typer.Option("--column", help="Column of the texts in tables.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Find the ranges of a graph's activations.

    Runs the float graph over a random subset of texts or images; the cache is bound to graph, data and method.

    Example: quietformer calibrate model.onnx --data texts.txt --out calibration.json --method mse

    Example: quietformer calibrate model.onnx --import trt.cache --out calibration.json
    """
    from deploy.calibration.method_choice import parse_choices
    from deploy.calibration.ranges import KNOWN_RANGE, parse_method
    from deploy.files import refuse_existing, refuse_own_input
    from quietformer.graph_data.calibration import (
        CalibrationPlan,
        calibrate_on_data,
        calibrate_on_random,
        calibrate_on_set,
    )
    from quietformer.progress import progress

    sources = {"--data": data is not None, "--import": foreign is not None, "--random": random}
    if len(given := [option for option, is_given in sources.items() if is_given]) > 1:
        raise ValueError(
            f"{' and '.join(given)} exclude each other: each says where ranges come from; give one of them"
        )
    if not given:
        raise ValueError(
            "nothing says where ranges come from: give --data with texts or images, --import with another tool's ranges, or --random"
        )
    refuse_own_input(out, [model, data, foreign])
    refuse_existing(out, force=force)
    if foreign is not None:
        _refuse_settings_of_a_run(context)
        _take_over(foreign, model, out, force=force)
        return
    name, parameters = parse_method(method)
    if name == KNOWN_RANGE:
        raise ValueError(f"method '{name}' is for single tensors: --method-of PATTERN={name}")
    plan = CalibrationPlan(
        method=name,
        parameters=parameters,
        batches=batches,
        batch_size=batch_size,
        length=length,
        methods=parse_choices(method_of or ()),
    )
    with progress("calibrate") as job:
        if data is None:
            cache = calibrate_on_random(model, plan, seed=seed, job=job)
        elif data.endswith(".npz"):
            cache = calibrate_on_set(model, Path(data), plan, job=job)
        else:
            cache = calibrate_on_data(model, data, plan, column=column, seed=seed, job=job)
    cache.save(out, force=force)
    for warning in cache.warnings():
        typer.echo(f"warning: {warning}", err=True)
    typer.echo(f"{out}: ranges of {len(cache.tensors)} tensors from {cache.samples} rows, {cache.method}")


def _refuse_settings_of_a_run(context: typer.Context) -> None:
    for name in ("method", "method_of", "batches", "batch_size", "length", "seed", "column"):
        if (source := context.get_parameter_source(name)) is not None and source.name != "DEFAULT":
            raise ValueError(f"--{name.replace('_', '-')} has no effect with --import: nothing is run")


def _take_over(foreign: Path, model: Path, out: Path, *, force: bool) -> None:
    from deploy.calibration.foreign_ranges import import_ranges

    taken = import_ranges(foreign, model)
    taken.cache.save(out, force=force)
    for warning in taken.cache.warnings():
        typer.echo(f"warning: {warning}", err=True)
    if taken.missing:
        rest = f" and {len(taken.missing) - 1} more" if len(taken.missing) > 1 else ""
        typer.echo(
            f"warning: {foreign} has no range of tensor '{taken.missing[0]}'{rest}; a profile that quantizes it refuses",
            err=True,
        )
    origin = taken.cache.data
    typer.echo(
        f"{out}: ranges of {len(taken.cache.tensors)} tensors from {foreign} ({origin['format']}, {origin['origin']}); "
        f"{len(taken.unknown)} of its names are not quantized"
    )
