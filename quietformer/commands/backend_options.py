"""Where artifacts run, for the commands that ask, and what is told where nobody says."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path


class BenchBackend(StrEnum):
    """Where artifacts run: graphs on the first three, engines on the others."""

    OPENVINO = "openvino"
    ONNXRUNTIME = "onnxruntime"
    ONNXRUNTIME_CUDA = "onnxruntime-cuda"
    TENSORRT = "tensorrt"
    TENSORRT_RTX = "tensorrt-rtx"


def usual_backend_told(artifacts: Sequence[Path]) -> str:
    """Where artifacts run when nobody says; one line on stderr where that is not OpenVINO. Raises as :func:`usual_cpu_backend`."""
    from deploy.backends.cpu_choice import usual_cpu_backend
    from quietformer.progress import say

    usual = usual_cpu_backend(artifacts)
    if usual == "onnxruntime":
        say("this processor has no 8-bit dot product: integers run on onnxruntime, exactly; --backend chooses another")
    return usual
