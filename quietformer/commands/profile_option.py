"""The ``--profile`` option that several commands share."""

from __future__ import annotations

from enum import StrEnum


class Profile(StrEnum):
    """Quantization profiles; ``deploy.graphs.profiles`` says what each quantizes."""

    TENSORRT = "tensorrt"
    PAPER = "paper"
    ORT = "ort"
    FP8 = "fp8"
