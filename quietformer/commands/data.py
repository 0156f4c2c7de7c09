"""``quietformer data``: named calibration sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def data(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Set to make; without it they are listed.")
    ] = None,
    *,
    tokenizer: Annotated[
        Path | None, typer.Option("--tokenizer", metavar="FILE", help="The graph's tokenizer.json.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for NAME.npz and NAME.json.")] = Path(
        "calibration_data/made"
    ),
    data_dir: Annotated[
        Path | None, typer.Option("--data", metavar="PATH", help="Where the source lies, for sets that need one.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing set.")] = False,
) -> None:
    """List or make named calibration sets.

    The same set from the same source and tokenizer has the same bytes. 'quietformer calibrate --data NAME.npz' reads it.

    Example: quietformer data docstrings --tokenizer runs/demo/tokenizer.json
    """
    if name is None:
        from calibration_data.sets import named_sets

        for entry in named_sets().values():
            typer.echo(f"{entry.name:<14}{entry.count:>6} texts, {entry.length:>3} tokens  {entry.description}")
        return
    from calibration_data.make import make_set
    from quietformer.progress import progress

    if tokenizer is None:
        raise ValueError(f"set '{name}' is made of token ids; give --tokenizer with the graph's tokenizer.json")
    with progress("data"):
        made = make_set(name, tokenizer_file=tokenizer, out=out, data_dir=data_dir, force=force)
    typer.echo(f"{made.arrays}: {made.samples} samples, sha256 {made.sha256}")
