"""``quietformer cache``: what a calibration cache holds, and its ranges in another tool's format."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Format(StrEnum):
    """Formats that ranges are given out in; ``deploy.calibration.foreign_ranges`` writes them."""

    TENSORRT = "tensorrt"
    ONNXRUNTIME = "onnxruntime"


def cache(
    calibration: Annotated[Path, typer.Argument(metavar="calibration.json", help="Cache of 'quietformer calibrate'.")],
    *,
    to: Annotated[
        Format | None,
        typer.Option("--to", help="tensorrt: text cache of symmetric scales. onnxruntime: JSON of quantize_static."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="The file to write.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Show a calibration cache, or write it for another tool.

    'quietformer calibrate --import' reads such files back.

    Example: quietformer cache calibration.json --to tensorrt --out trt.cache
    """
    from deploy.calibration.calibration_cache import CalibrationCache
    from deploy.calibration.foreign_ranges import export_ranges
    from deploy.files import refuse_own_input

    loaded = CalibrationCache.load(calibration)
    if (to is None) != (out is None):
        raise ValueError("--to and --out belong together: a format, and the file to write")
    if to is None or out is None:
        typer.echo(f"{calibration}: ranges of {len(loaded.tensors)} tensors, {loaded.method}, {loaded.samples} rows")
        typer.echo(f"  model   sha256 {loaded.model_sha256}")
        typer.echo(f"  data    {_short(loaded.data)}")
        typer.echo(f"  made with {', '.join(f'{name} {version}' for name, version in loaded.tool_versions.items())}")
        if loaded.not_for_accuracy:
            typer.echo("  random data: not for accuracy")
        return
    refuse_own_input(out, [calibration])
    export_ranges(loaded, to.value, out, force=force)
    typer.echo(f"{out}: ranges of {len(loaded.tensors)} tensors for {to.value}")


def _short(data: dict[str, object]) -> str:
    return ", ".join(f"{key} {_plain(value)}" for key, value in data.items())


def _plain(value: object) -> str:
    if isinstance(value, list):
        return f"({len(value)})"
    if isinstance(value, dict):
        return " ".join(str(entry)[:12] for entry in value.values())
    return str(value)
