"""What quantization must know of float16 graphs: their types, the names of their tensors, and the graph that was calibrated.

A float16 graph has the tensors of the float32 graph it was made from. Ranges are measured on that one, and the float16 graph
carries its hash, so that a cache of the one is known to fit the other.
"""

from __future__ import annotations

from pathlib import Path

import onnx

from deploy.graphs.graph_info import METADATA_KEY, GraphInfo
from deploy.graphs.graph_structure import read_outline
from deploy.graphs.model_hash import model_sha256
from deploy.graphs.profiles import Profile

LOWEST_OPSET = 19
"""First opset whose QuantizeLinear takes float16 (ONNX operator reference)."""
_PROFILES = ("tensorrt", "fp8")
"""Those whose graphs go to a GPU."""
_HALF_SUFFIX = "/float16"


def float16_tensors(model: onnx.ModelProto) -> set[str]:
    """Names of the tensors whose type is written down as float16."""
    return {
        value.name
        for value in (*model.graph.input, *model.graph.value_info, *model.graph.output)
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT16
    }


def float32_name(tensor: str) -> str:
    """Name in the float32 graph: only the float16 form of a graph output is called otherwise."""
    return tensor.removesuffix(_HALF_SUFFIX)


def calibrated_sha256(path: Path, *, own: str | None = None) -> str:
    """Hash of the graph on which the ranges of a graph are measured: its own, or that of its float32 form.

    Args:
        path: ONNX file.
        own: its hash, where it is known already.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not an ONNX model, or damaged metadata.
    """
    info = _info(read_outline(path), name=str(path))
    if info is None or info.dtype == "float32" or info.float32_sha256 is None:
        return own or model_sha256(path)
    return info.float32_sha256


def refuse_float16(model: onnx.ModelProto, *, name: str) -> None:
    """Guard calibration.

    Raises:
        ValueError: a float16 graph.
    """
    info = _info(model, name=name)
    if info is not None and info.dtype == "float16":
        raise ValueError(
            f"{name} is a float16 graph; calibrate the float32 graph of the same checkpoint, its ranges fit both"
        )


def check_float16(model: onnx.ModelProto, profile: Profile, *, name: str) -> None:
    """Refuse what cannot be quantized in a float16 graph.

    Raises:
        ValueError: a profile that is not for GPUs, or an opset without float16 scales.
    """
    if profile.name not in _PROFILES:
        raise ValueError(
            f"{name} is a float16 graph, for profile '{_PROFILES[0]}' only; quantize the float32 graph for '{profile.name}'"
        )
    opset = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    if opset < LOWEST_OPSET:
        raise ValueError(
            f"{name} has opset {opset}, in which scales cannot be float16; export with {LOWEST_OPSET} or newer"
        )


def _info(model: onnx.ModelProto, *, name: str) -> GraphInfo | None:
    if not any(entry.key == METADATA_KEY for entry in model.metadata_props):
        return None
    return GraphInfo.read(model, name=name)
