"""Options of quantization that several commands share: whose integers, of which ranges and widths."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Profile(StrEnum):
    """Quantization profiles; ``deploy.graphs.profiles`` says what each quantizes."""

    TENSORRT = "tensorrt"
    PAPER = "paper"
    ORT = "ort"
    FP8 = "fp8"


class Weights(StrEnum):
    """How the ranges of the weights are chosen."""

    MINMAX = "minmax"
    MSE = "mse"
    PER_CHANNEL = "per-channel"


Calibration = Annotated[Path, typer.Option("--calibration", metavar="FILE", help="Cache of 'quietformer calibrate'.")]
ProfileToWrite = Annotated[Profile, typer.Option("--profile", help="What is quantized, and how.")]
WeightRanges = Annotated[Weights, typer.Option("--weights", help="Ranges of the weights.")]
Widths = Annotated[
    str, typer.Option("--bits", metavar="W8A8", help="Widths, 2 to 16; others than 8 in profile 'paper', simulated.")
]
USUAL_WIDTHS = "W8A8"
