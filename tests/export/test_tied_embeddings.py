"""A table that is both embedding and head is one tensor in the file, also in float16 and beside its own integers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from deploy.calibration.calibrate import calibrate
from deploy.graphs.graph_index import GraphIndex
from deploy.graphs.graph_info import read_info
from deploy.graphs.graph_patterns import find_linears, is_head
from deploy.quantization.lint import lint
from deploy.quantization.quantize import quantize
from export.half_precision import half_graph
from export.parity import open_session
from tests.export.conftest import Exported, ExportTiny
from tests.export.test_to_onnx import MASKED_LM
from tests.export.tiny_checkpoints import VOCAB_SIZE
from tests.export.tiny_decoders import FAMILIES

HIDDEN = 32
TIED: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert.embeddings.word_embeddings.weight", {"model": MASKED_LM, "opset": 19}),
    "llama": ("model.embed_tokens.weight", {"model": {**FAMILIES["llama"], "num_layers": 1}}),
}


@pytest.fixture(params=list(TIED))
def tied(request: pytest.FixtureRequest, export_tiny: ExportTiny) -> tuple[str, Exported]:
    """Name of the table, and the export."""
    table, options = TIED[request.param]
    return table, export_tiny(**options)


def _tables(model: onnx.ModelProto, *types: int) -> list[str]:
    """Stored matrices of the vocabulary's size."""
    sizes = ([VOCAB_SIZE, HIDDEN], [HIDDEN, VOCAB_SIZE])
    return [t.name for t in model.graph.initializer if list(t.dims) in sizes and t.data_type in types]


def _head(model: onnx.ModelProto) -> tuple[GraphIndex, onnx.NodeProto]:
    index = GraphIndex(model.graph)
    (head,) = (linear for linear in find_linears(index) if is_head(index, linear))
    return index, head.node


def _feeds(path: Path) -> dict[str, np.ndarray]:
    ids = np.random.default_rng(3).integers(4, VOCAB_SIZE, size=(2, 9))
    arrays = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    return {entry.name: arrays[entry.name] for entry in open_session(path).get_inputs()}


def test_the_file_holds_the_table_once_and_no_more_than_the_parameters(tied: tuple[str, Exported]) -> None:
    table, exported = tied
    model = onnx.load(exported.path)
    assert _tables(model, onnx.TensorProto.FLOAT) == [table]
    stored = sum(
        numpy_helper.to_array(t).nbytes for t in model.graph.initializer if t.data_type == onnx.TensorProto.FLOAT
    )
    parameters = sum(parameter.numel() for parameter in exported.model.parameters())
    assert stored <= 4 * parameters + 200
    index, head = _head(model)
    transpose = index.producer(head.input[1])
    assert transpose is not None
    assert (transpose.op_type, transpose.input[0]) == ("Transpose", table)
    assert [use.node.op_type for use in index.uses(table)] == ["Gather", "Transpose"]


def test_in_float16_it_is_one_tensor_too(tied: tuple[str, Exported], tmp_path: Path) -> None:
    """Tolerance: 5e-3 of the largest output, what the export itself allows."""
    table, exported = tied
    half = half_graph(onnx.load(exported.path), read_info(exported.path))
    assert _tables(half, onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16) == [table]
    onnx.save(half, tmp_path / "half.onnx")
    feeds = _feeds(exported.path)
    expected, actual = (open_session(path).run(None, feeds)[0] for path in (exported.path, tmp_path / "half.onnx"))
    assert 0 < np.abs(actual - expected).max() < 5e-3 * np.abs(expected).max()


@pytest.mark.parametrize("profile", ["tensorrt", "paper"])
def test_integers_of_the_embedding_leave_the_head_its_float_table(
    tied: tuple[str, Exported], profile: str, tmp_path: Path
) -> None:
    """``paper`` looks rows up in int8; the head, which no profile quantizes, keeps the float table. Both are stored."""
    table, exported = tied
    cache = calibrate(exported.path, [_feeds(exported.path)], method="minmax", data={"kind": "test"}, seed=0)
    out = tmp_path / "int8.onnx"
    quantize(exported.path, cache, out, profile=profile)
    assert lint(out, profile) == []
    model = onnx.load(out)
    index, head = _head(model)
    transpose = index.producer(head.input[1])
    assert transpose is not None
    assert (transpose.op_type, transpose.input[0]) == ("Transpose", table)
    (gather,) = (node for node in index.nodes if node.op_type == "Gather" and node.input[1] == "input_ids")
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    assert stored[gather.input[0]].dtype == (np.int8 if profile == "paper" else np.float32)
    assert stored[table].dtype == np.float32
    logits = open_session(out).run(None, _feeds(exported.path))[0]
    assert np.isfinite(logits).all()
