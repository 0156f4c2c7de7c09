"""The float16 graph of every family: same numbers, same sites of integers, and TensorRT-RTX's parser takes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from transformers import PreTrainedModel

from deploy.calibration.calibrate import calibrate
from deploy.graphs.graph_info import read_info
from deploy.graphs.graph_writing import checked_before_replacing
from deploy.quantization.lint import lint
from deploy.quantization.quantize import quantize
from export.half_precision import half_graph
from export.parity import FLOAT16_TOLERANCE, open_session
from export.to_onnx import export_checkpoint
from tests.export.conftest import ExportTiny
from tests.export.rtx_parser import refuse_unparsable
from tests.export.test_decoder_export import ONE_LAYER
from tests.export.tiny_checkpoints import VOCAB_SIZE, settings
from tests.export.vision_checkpoints import SMALL_ENCODER, small_timm, small_vit, write_vision
from train.attention.settings import AttentionSettings

DECODERS: list[tuple[str, str, str, dict[str, Any]]] = [
    ("opt", "clipped", "linear", {"lowering": "literal"}),
    ("opt-post-norm", "off-by-one", "mlp", {"length": 24, "opset": 21}),
    ("llama", "vanilla", "none", {}),
    ("llama", "clipped-zeta", "all-heads", {"opset": 23}),
]
"""As :mod:`tests.export.test_decoder_export` exports them."""


def _check(path: Path, feeds: dict[str, np.ndarray], real: Any) -> onnx.ModelProto:
    """Float16 and its integers against float32; returns the float16 graph."""
    half, integers, reference = (path.with_suffix(f".{name}.onnx") for name in ("fp16", "fp16.int8", "int8"))
    with checked_before_replacing(half_graph(onnx.load(path), read_info(path)), half) as written:
        onnx.checker.check_model(written, full_check=True)
    expected, actual = (open_session(graph).run(None, feeds)[0][real] for graph in (path, half))
    assert 0 < np.abs(actual - expected).max() < FLOAT16_TOLERANCE * np.abs(expected).max()
    cache = calibrate(path, [feeds], method="minmax", data={"kind": "test"}, seed=0, threads=1)
    found, wanted = quantize(half, cache, integers), quantize(path, cache, reference)
    assert (found.activations, found.weights) == (wanted.activations, wanted.weights)
    assert (found.float_linears, found.operations) == (wanted.float_linears, wanted.operations)
    assert lint(integers, "tensorrt") == []
    assert np.isfinite(open_session(integers).run(None, feeds)[0][real]).all()
    for graph in (half, integers):
        refuse_unparsable(graph)
    return onnx.load(half)


@pytest.mark.parametrize("variant", DECODERS, ids=lambda variant: "-".join(variant[:3]))
def test_decoders(export_tiny: ExportTiny, tmp_path: Path, variant: tuple[str, str, str, dict[str, Any]]) -> None:
    family, softmax, gate, options = variant
    path = tmp_path / "model.onnx"
    path.write_bytes(export_tiny(softmax, gate, model=ONE_LAYER[family], **options).path.read_bytes())
    mask = np.ones((3, 24), np.int64)
    mask[1, 15:], mask[2, :7] = 0, 0
    ids = np.random.default_rng(0).integers(4, VOCAB_SIZE, mask.shape) * mask
    half = _check(path, {"input_ids": ids, "attention_mask": mask}, mask == 1)
    if family == "llama":  # angles of rotary positions
        types = {value.name: value.type.tensor_type.elem_type for value in half.graph.value_info}
        angles = [name for node in half.graph.node if node.op_type in ("Sin", "Cos") for name in node.input]
        assert {types[name] for name in angles} == {onnx.TensorProto.FLOAT}


@pytest.mark.parametrize(
    ("make", "softmax", "gate"),
    [(small_vit, "vanilla", "none"), (small_vit, "clipped", "mlp"), (small_timm, "clipped", "linear")],
)
def test_vision_transformers(
    tmp_path: Path, make: Callable[[AttentionSettings], PreTrainedModel], softmax: str, gate: str
) -> None:
    if make is small_timm:
        pytest.importorskip("timm")
    checkpoint = write_vision(make(settings(softmax, gate)), tmp_path / "checkpoint", SMALL_ENCODER)
    path = export_checkpoint(checkpoint, tmp_path / "graph" / "model.onnx").path
    pixels = np.random.default_rng(0).standard_normal((3, 3, 32, 32), dtype=np.float32)
    half = _check(path, {"pixel_values": pixels}, slice(None))
    (source,) = half.graph.input
    assert source.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    readers = {node.op_type for node in half.graph.node if "pixel_values" in node.input} - {"Shape"}
    assert readers == {"Cast"}
