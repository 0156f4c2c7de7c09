"""Which matrix products of an engine run in INT8 or FP8, from the JSON of TensorRT's engine inspector.

TensorRT 10 writes ``Bindings`` and one field ``Format/Datatype`` per tensor; 11 writes ``I/O Tensors`` and two fields,
``Format`` and ``Datatype`` (NVIDIA's migration notes). Which of the two is read from the text, not from a version. The plan
must have been built with verbosity ``detailed``. Unverified on a device: no GPU was at hand to record an engine of both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_PRODUCT_KINDS = ("gemm", "matrixmultiply", "matmul", "conv", "fullyconnected")
_ATTENTION = ("mha", "attention", "flash")
_INT8_TACTIC = re.compile(r"(?:^|_)(?:i8i8|i8f32|i8i32|int8|imma)(?:_|$)|i8i8", re.IGNORECASE)
_FLOAT8_TACTIC = re.compile(r"e4m3", re.IGNORECASE)
_EIGHT_BITS = ("int8", "float8")
_TYPES = {
    "int8": "int8",
    "half": "float16",
    "fp16": "float16",
    "float16": "float16",
    "fp8": "float8",
    "float8e4m3": "float8",
    "float8e4m3fn": "float8",
    "bf16": "bfloat16",
}
_TYPE_WORD = re.compile(
    r"\b(int8|fp16|half|float16|bf16|bfloat16|fp8|float8e4m3(?:fn)?|fp32|float32|float|int32|int64)\b", re.IGNORECASE
)


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineLayer:
    """One layer of a built engine, after fusion."""

    name: str
    kind: str
    """As the inspector calls it, such as ``gemm`` or ``CaskConvolution``."""
    tactic: str
    """Kernel; empty where the inspector names none."""
    input_types: tuple[str, ...]
    """``int8``, ``float16``, … in order; empty where it says nothing of inputs."""

    @property
    def is_product(self) -> bool:
        """Whether it is a matrix product or convolution; fused attention counts as one."""
        text = f"{self.kind} {self.tactic}".lower()
        return any(word in text for word in (*_PRODUCT_KINDS, *_ATTENTION))

    @property
    def precision(self) -> str:
        """Type that a product computes in: of the kernel where its name says so, else of its inputs."""
        if _INT8_TACTIC.search(self.tactic):
            return "int8"
        if _FLOAT8_TACTIC.search(self.tactic):
            return "float8"
        operands = self.input_types[:2]
        if len(set(operands)) == 1:
            return operands[0]
        return next((kind for kind in operands if kind not in _EIGHT_BITS), "unknown")


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineInspection:
    """What the inspector tells of an engine."""

    form: str
    """``10`` or ``11``: whose fields the text has."""
    layers: tuple[EngineLayer, ...]
    tensors: tuple[str, ...]
    """Inputs and outputs of the engine."""

    @property
    def products(self) -> tuple[EngineLayer, ...]:
        """Its matrix products."""
        return tuple(layer for layer in self.layers if layer.is_product)

    def product_counts(self) -> dict[str, int]:
        """Matrix products by the type they run in."""
        counts: dict[str, int] = {}
        for layer in self.products:
            counts[layer.precision] = counts.get(layer.precision, 0) + 1
        return dict(sorted(counts.items()))


def read_inspection(text: str) -> EngineInspection:
    """Read the answer of ``EngineInspector.get_engine_information`` with the format JSON.

    Raises:
        ValueError: not JSON, another form, or an engine built without verbosity ``detailed``.
    """
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ValueError(f"the engine's information is not JSON: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("Layers"), list):
        raise ValueError("the engine's information has no list 'Layers'; expected what TensorRT's inspector writes")  # noqa: TRY004 - a fault of the text
    layers: Sequence[Any] = content["Layers"]
    if any(not isinstance(layer, dict) for layer in layers):
        raise ValueError("the engine tells only the names of its layers; build it with --profiling-verbosity detailed")
    is_11 = "I/O Tensors" in content
    tensors = content.get("I/O Tensors" if is_11 else "Bindings", [])
    return EngineInspection(
        form="11" if is_11 else "10",
        layers=tuple(_layer(layer) for layer in layers),
        tensors=tuple(str(entry.get("Name", "")) if isinstance(entry, dict) else str(entry) for entry in tensors),
    )


def _layer(content: Mapping[str, Any]) -> EngineLayer:
    inputs = [entry for entry in content.get("Inputs", []) if isinstance(entry, dict)]
    weights = content.get("Weights")
    types = [_type(str(entry.get("Datatype") or entry.get("Format/Datatype") or "")) for entry in inputs]
    if isinstance(weights, dict) and len(types) == 1:
        types.append(_type(str(weights.get("Type", ""))))
    return EngineLayer(
        name=str(content.get("Name", "")),
        kind=str(content.get("LayerType", "")),
        tactic=str(content.get("TacticName") or content.get("TacticValue") or ""),
        input_types=tuple(types),
    )


def _type(text: str) -> str:
    """``int8`` of ``Row major linear INT8 format``, ``float16`` of ``Half``."""
    found = _TYPE_WORD.search(text)
    if found is None:
        return "unknown"
    word = found.group(1).lower()
    return _TYPES.get(word, "float32" if word in ("float", "fp32", "float32") else word)
