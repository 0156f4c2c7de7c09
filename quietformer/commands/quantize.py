"""``quietformer quantize``: a float graph and its ranges to a W8A8 Q/DQ graph."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from quietformer.commands.calibrate import Method
from quietformer.commands.profile_option import Profile


class Weights(StrEnum):
    """How the ranges of the weights are chosen."""

    MINMAX = "minmax"
    MSE = "mse"
    PER_CHANNEL = "per-channel"


def quantize(
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="Float graph, as exported.")],
    *,
    calibration: Annotated[
        Path, typer.Option("--calibration", metavar="FILE", help="Cache of 'quietformer calibrate'.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="MODEL.int8.onnx", help="The graph to write.")],
    profile: Annotated[Profile, typer.Option("--profile", help="What is quantized, and how.")] = Profile.TENSORRT,
    weights: Annotated[Weights, typer.Option("--weights", help="Ranges of the weights.")] = Weights.MINMAX,
    exclude: Annotated[
        Path | None,
        typer.Option(
            "--exclude", metavar="FILE", help="Names or patterns that stay float, one a line; # for comments."
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option("--data", metavar="PATH", help="Refuse ranges that come from other texts or images.")
    ] = None,
    method: Annotated[Method | None, typer.Option("--method", help="Refuse ranges of another method.")] = None,
    allow_stale_cache: Annotated[
        bool, typer.Option("--allow-stale-cache", help="Take ranges of another graph, other texts, another method.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write W8A8 integers into a graph.

    Static and per tensor, as QuantizeLinear and DequantizeLinear nodes.

    Example: quietformer quantize model.onnx --calibration calibration.json --out model.int8.onnx --weights mse
    """
    from deploy.calibration.calibration_cache import CalibrationCache
    from deploy.files import refuse_existing, refuse_own_input
    from deploy.quantization.quantize import quantize as write_integers
    from quietformer.graph_data.graph_inputs import graph_data_identity
    from quietformer.progress import progress

    if allow_stale_cache and (data is not None or method is not None):
        raise ValueError("--data and --method have no effect with --allow-stale-cache")
    refuse_own_input(out, [model, calibration, exclude, data])
    refuse_existing(out, force=force)
    cache = CalibrationCache.load(calibration)
    if not allow_stale_cache:
        cache.check(
            model,
            data=graph_data_identity(model, data) if data is not None else None,
            method=method.value if method else None,
        )
    patterns = read_patterns(exclude) if exclude is not None else []
    with progress("quantize") as job:
        summary = write_integers(
            model,
            cache,
            out,
            profile=profile.value,
            weights=weights.value,
            exclude=patterns,
            allow_stale=allow_stale_cache,
            force=force,
            progress=job.tell,
        )
    typer.echo(
        f"{out}: profile {summary.profile}, {sum(summary.activations.values())} activations and "
        f"{sum(summary.weights.values())} weights quantized, "
        f"{summary.float_bytes / 1e6:.1f} MB to {summary.quantized_bytes / 1e6:.1f} MB"
    )
    for node, reason in summary.float_linears.items():
        typer.echo(f"  float: {node} ({reason})")


def read_patterns(path: Path) -> list[str]:
    """Lines of an exclusion list without blanks and comments.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not a text file, or nothing in it.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no exclusion list at {path}")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a text file: byte {error.start} is not UTF-8") from error
    patterns = [pattern for line in lines if (pattern := line.partition("#")[0].strip())]
    if not patterns:
        raise ValueError(f"{path} names nothing to exclude")
    return patterns
