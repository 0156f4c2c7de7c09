"""ONNX Runtime's JSON calibration table: lowest and highest value per tensor.

What ``quantize_static(calibration_cache_path=...)`` writes and reads (``TensorsData``), and the bare table that
``write_calibration_table`` makes of the same entries. A number is plain, or an array of one element with its type.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from deploy.calibration.calibration_cache import CalibrationCache
from deploy.calibration.range_table import RangeTable, checked_range

_OWN_KEY = "quietformer"
"""What ONNX Runtime passes over and an import reads back: the graph and the data behind the ranges."""


def read_onnxruntime_table(text: str, *, name: str) -> RangeTable:
    """Ranges of a table's text.

    Args:
        text: content of the file.
        name: of the file, for messages.

    Raises:
        ValueError: not JSON, another kind of JSON, ranges of a smoothed graph, entries without range, or damaged ones.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} is not JSON, or ends early: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{name} is a JSON {type(content).__name__}; expected ONNX Runtime's table of tensors")  # noqa: TRY004 - a fault of the file
    wrapped = content.get("CLS") == "TensorsData"
    entries = content.get("data") if wrapped else content
    if not isinstance(entries, dict) or not entries or not all(isinstance(entry, dict) for entry in entries.values()):
        raise ValueError(f"{name} is no calibration table of ONNX Runtime: it has no ranges by tensor name")
    if wrapped and content.get("smooth_quant"):
        raise ValueError(
            f"{name} holds the ranges of a graph that SmoothQuant changed; calibrate the float graph itself"
        )
    ranges = {str(tensor): _range(entry, tensor=str(tensor), name=name) for tensor, entry in entries.items()}
    own = content.get(_OWN_KEY) if wrapped else None
    own = own if isinstance(own, dict) else {}
    return RangeTable(
        format="onnxruntime",
        origin=_method(content.get("calibration_method")) if wrapped else "calibration table",
        ranges=ranges,
        symmetric=all(low == -high for low, high in ranges.values()),
        model_sha256=str(own["model_sha256"]) if "model_sha256" in own else None,
        not_for_accuracy=bool(own.get("not_for_accuracy", False)),
    )


def write_onnxruntime_table(cache: CalibrationCache) -> str:
    """Text of a table that ``quantize_static`` loads as its min-max ranges: the range that the cache's method chose.

    Raises:
        ValueError: a cache that has no ranges for unsigned integers.
    """
    data = {}
    for tensor in cache.tensors:
        low, high = cache.chosen_range(tensor, symmetric=False)
        data[tensor] = {"lowest": _number(low), "highest": _number(high), "CLS": "TensorData"}
    content = {
        "CLS": "TensorsData",
        "data": data,
        "calibration_method": {"CLS": "CalibrationMethod", "value": "CalibrationMethod.MinMax"},
        "smooth_quant": False,
        _OWN_KEY: {
            "model_sha256": cache.model_sha256,
            "data": cache.data,
            "method": cache.method,
            "parameters": cache.parameters,
            "not_for_accuracy": cache.not_for_accuracy,
        },
    }
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _range(entry: dict[str, Any], *, tensor: str, name: str) -> tuple[float, float]:
    ends = []
    for key in ("lowest", "highest"):
        if key not in entry:
            raise ValueError(f"{name}: tensor '{tensor}' has no '{key}'; expected a table of lowest and highest values")
        value = entry[key]
        stored = value.get("data") if isinstance(value, dict) else value
        try:
            array = np.asarray(stored, np.float64)
        except (ValueError, TypeError):
            array = np.empty(0)
        if array.size != 1:
            raise ValueError(f"{name}: '{key}' of tensor '{tensor}' is {json.dumps(value)[:60]}; expected one number")
        ends.append(float(array.reshape(())))
    return checked_range(ends[0], ends[1], tensor=tensor, name=name)


def _number(value: float) -> dict[str, Any]:
    return {"data": float(np.float32(value)), "dtype": "float32", "CLS": "numpy.array"}


def _method(value: Any) -> str:
    return str(value.get("value") if isinstance(value, dict) else value).rpartition(".")[2]
