"""Drawings as SVG files in a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from deploy.files import refuse_existing, write_atomically
from quietformer.report.figures.plot import Plot
from quietformer.report.plots import standalone


def write_plots(folder: Path, plots: Mapping[str, Sequence[Plot]], *, force: bool) -> None:
    """Write ``PART-NN.svg`` for every drawing of every part.

    Raises:
        FileExistsError: one of the files exists and ``force`` is not set; none is written then.
    """
    files = {
        folder / f"{part}-{number:02d}.svg": plot
        for part, drawn in plots.items()
        for number, plot in enumerate(drawn, start=1)
    }
    for path in files:
        refuse_existing(path, force=force)
    folder.mkdir(parents=True, exist_ok=True)
    for path, plot in files.items():
        write_atomically(path, standalone(plot.svg))
