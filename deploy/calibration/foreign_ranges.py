"""Ranges in the calibration files of other tools: taken over into a cache that says where they come from, and given out.

A foreign file binds its ranges to no model. Taking it over binds them to one graph, by the names of its tensors; whether
they were measured on that very model only who brings them can know, so the cache keeps the file's hash and origin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from deploy.calibration.calibration_cache import IMPORTED_KIND, IMPORTED_METHOD, CalibrationCache
from deploy.calibration.onnxruntime_table import read_onnxruntime_table, write_onnxruntime_table
from deploy.calibration.tensor_statistics import TensorStatistics
from deploy.calibration.tensorrt_table import read_tensorrt_table, write_tensorrt_table
from deploy.files import refuse_existing, sha256_file, write_atomically
from deploy.graphs.float16 import refuse_float16
from deploy.graphs.graph_structure import read_outline
from deploy.graphs.model_hash import model_sha256
from deploy.graphs.sites import observed_tensors

ForeignFormat = Literal["tensorrt", "onnxruntime"]

_WRITERS: dict[ForeignFormat, Callable[[CalibrationCache], str]] = {
    "tensorrt": write_tensorrt_table,
    "onnxruntime": write_onnxruntime_table,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ForeignImport:
    """What taking a file over gave."""

    cache: CalibrationCache
    unknown: tuple[str, ...] = field(default=())
    """Names in the file that are no tensor which a profile quantizes; left out."""
    missing: tuple[str, ...] = field(default=())
    """Tensors that a profile quantizes and the file does not know; a profile that needs one refuses the cache."""


def import_ranges(path: Path, model_path: Path) -> ForeignImport:
    """Take the ranges of another tool's calibration file over, for one graph.

    Args:
        path: TensorRT's text cache, or ONNX Runtime's JSON table.
        model_path: the float graph that they are for.

    Raises:
        FileNotFoundError: no such file or model.
        ValueError: neither of the two formats, a damaged file, one that was made from another graph, or one that knows no
            tensor of the graph.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no calibration file at {path}")
    text = _text(path)
    looks_like_json = text.lstrip()[:1] in ("{", "[")
    table = (
        read_onnxruntime_table(text, name=str(path)) if looks_like_json else read_tensorrt_table(text, name=str(path))
    )
    sha256 = model_sha256(model_path)
    if table.model_sha256 not in (None, sha256):
        raise ValueError(
            f"{path} was made from another graph: its model_sha256 is {str(table.model_sha256)[:12]}, "
            f"that of {model_path} is {sha256[:12]}"
        )
    structure = read_outline(model_path)
    refuse_float16(structure, name=str(model_path))
    observed = observed_tensors(structure)
    if not observed:
        raise ValueError(f"{model_path} has no tensor to calibrate: no profile quantizes anything in it")
    known = {tensor.name: tensor for tensor in observed}
    tensors = {
        name: _statistics(*table.ranges[name], unit_interval=tensor.unit_interval)
        for name, tensor in known.items()
        if name in table.ranges
    }
    if not tensors:
        raise ValueError(
            f"{path} knows no tensor of {model_path} that is quantized: "
            f"it names {_some(list(table.ranges))}, the graph {_some(list(known))}"
        )
    cache = CalibrationCache(
        model_sha256=sha256,
        data={
            "kind": IMPORTED_KIND,
            "format": table.format,
            "origin": table.origin,
            "symmetric": table.symmetric,
            "file": {"name": path.name, "sha256": sha256_file(path), "bytes": path.stat().st_size},
        },
        preprocessing={},
        method=IMPORTED_METHOD,
        parameters={},
        seed=0,
        samples=0,
        batches=0,
        tensors=tensors,
        not_for_accuracy=table.not_for_accuracy,
    )
    return ForeignImport(
        cache=cache,
        unknown=tuple(name for name in table.ranges if name not in known),
        missing=tuple(name for name in known if name not in tensors),
    )


def export_ranges(cache: CalibrationCache, form: str, out: Path, *, force: bool = False) -> None:
    """Write a cache in another tool's format.

    Raises:
        FileExistsError: ``out`` exists and ``force`` is not set.
        ValueError: an unknown format, or a cache that it cannot hold.
    """
    writer = next((_WRITERS[known] for known in get_args(ForeignFormat) if known == form), None)
    if writer is None:
        raise ValueError(f"unknown format '{form}'; known are {', '.join(get_args(ForeignFormat))}")
    refuse_existing(out, force=force)
    write_atomically(out, writer(cache))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is no calibration file: byte {error.start} is not text; expected TensorRT's text cache or "
            "ONNX Runtime's JSON table"
        ) from error


def _statistics(low: float, high: float, *, unit_interval: bool) -> TensorStatistics:
    """Statistics of a tensor of which only the ends are known."""
    values: dict[str, Any] = {"count": 1, "nonfinite": 0, "min": low, "max": high, "batches": 1, "momentum": 0.0}
    return TensorStatistics.from_dict(
        values | {"running_min": low, "running_max": high, "unit_interval": unit_interval}
    )


def _some(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")
