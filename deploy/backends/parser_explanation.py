"""What the ONNX parser or the builder refused, told so that one can act: node, operator, reason, what to do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from deploy.backends.tensorrt_dialect import Dialect

_ADVICE = (
    (r"[Nn]on-zero zero point|shiftIsAllZeros", "quantize with --profile tensorrt, which is symmetric int8"),
    (
        r"must have same (input )?types|[Tt]ype mismatch|same type",
        "a Cast is missing: export with --dtype float16 again",
    ),
    (
        r"[Pp]lugin not found|[Nn]o importer|[Uu]nsupported operator",
        "export with standard operators and quantize with Q/DQ",
    ),
    (r"no optimization profile", "give --min-shapes, --opt-shapes and --max-shapes"),
    (r"FP32 GEMM is not supported", "leave this target out, or export with --dtype float16"),
    (
        r"CHECK\(status == CUDA_SUCCESS\)|cudaError|CUDA initialization",
        "this kind of engine needs an NVIDIA GPU to build",
    ),
    (r"sm_vers_", "name one target alone"),
    (r"[Oo]ut of memory|[Cc]ould not find any implementation", "give more memory: --workspace, or smaller max shapes"),
)
"""Pattern in the library's text, and advice."""
_TARGET = re.compile(r"\bSM_?(\d{2,3})\b")


def parser_explanation(parser: Any, dialect: Dialect, model_path: Path, said: str) -> str:
    """Why a graph was not parsed, in one line.

    Args:
        parser: after a parse that failed.
        dialect: whose parser it is.
        model_path: the graph.
        said: the library's last error, for a parser that lists none.
    """
    if not parser.num_errors:
        return f"{dialect.title} cannot parse {model_path}: {said}{_advice(said)}"
    error = parser.get_error(0)
    reason = " ".join(error.desc().split())
    return (
        f"{dialect.title} cannot parse {model_path}: node '{error.node_name()}', operator "
        f"{error.node_operator()}: {reason}{_advice(reason)}"
    )


def build_explanation(dialect: Dialect, model_path: Path, said: str) -> str:
    """Why a parsed graph was not built, in one line; ``said`` is the library's last error."""
    return f"{dialect.title} cannot build {model_path}: {said}{_advice(said)}"


def refused_targets(said: str, targets: tuple[str, ...]) -> tuple[str, ...]:
    """Which of the ``targets`` (such as ``7.5``) an error names as those that cannot be built for."""
    named = {f"{number[:-1]}.{number[-1]}" for number in _TARGET.findall(said)}
    return tuple(target for target in targets if target in named)


def _advice(reason: str) -> str:
    found = next((advice for pattern, advice in _ADVICE if re.search(pattern, reason)), None)
    return f"; {found}" if found else ""
