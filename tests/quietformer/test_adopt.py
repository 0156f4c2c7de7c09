"""Graphs of other tools, through the commands: adopted, then calibrated, quantized, linted, compared and benched."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.external_data_helper import convert_model_to_external_data

from deploy.graphs import graph_writing
from deploy.graphs.graph_info import read_info
from deploy.graphs.graph_structure import external_files, read_structure
from tests.deploy.encoder_graph import feeds
from tests.deploy.foreign_encoder import foreign_encoder
from tests.deploy.vit_graph import ENCODER, VitRecipe, vit
from tests.deploy.word_tokenizer import write_tokenizer
from tests.quietformer.test_commands import invoke, refuse, succeed


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("arrays") / "samples.npz"
    batches = [feeds(batch=4, length=9, seed=seed) for seed in range(4)]
    np.savez(
        path, allow_pickle=False, **{name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    )
    return path


def test_a_graph_of_arrays_goes_all_the_way(tmp_path: Path, arrays: Path) -> None:
    foreign, model, cache, int8 = (tmp_path / name for name in ("bert.onnx", "model.onnx", "c.json", "int8.onnx"))
    onnx.save(foreign_encoder(14, constants="nodes"), foreign)
    assert "'quietformer adopt'" in refuse("bench", foreign)
    told = succeed("adopt", foreign, "--out", model).stdout
    assert "reads arrays" in told
    assert "constants folded" in told
    told = succeed("calibrate", model, "--data", arrays, "--out", cache, "--batch-size", 4).stdout
    assert "from 16 rows" in told
    told = succeed("quantize", model, "--calibration", cache, "--out", int8, "--data", arrays).stdout
    assert "6 weights quantized (minmax)" in told
    succeed("lint", int8)
    compared = ("compare", "--baseline", model, "--candidate", int8, "--task", "outputs", "--data", arrays)
    report = tmp_path / "report.json"
    succeed(*compared, "--json", report, "--min-score", 15)
    written = json.loads(report.read_text())
    scores = [row["mean"] for row in written["rows"]]
    assert scores[0] == "inf"
    assert 15 < scores[1] < 60
    assert [row["drop"] for row in written["rows"]] == [0.0, None]
    assert (written["min_score"], written["max_drop"], written["passed"]) == (15, None, True)
    failed = invoke(*compared, "--min-score", 60)
    assert failed.exit_code == 1
    assert "exact" in failed.stdout
    assert "200" not in failed.stdout
    assert "has less SQNR to float (dB) than 60" in failed.stderr
    assert "give --min-score, the lowest SQNR in dB" in refuse(*compared, "--max-drop", 40)
    for data in ((), ("--data", arrays)):
        told = succeed("bench", model, int8, *data, "--shapes", "2x8", "--seconds", 0.05, "--repeats", 1).stdout
        assert "int8.onnx" in told
    assert "asks for more" in refuse("bench", model, "--data", arrays, "--shapes", "2x12")
    assert "give an .npz file" in refuse("bench", model, "--data", "texts.txt")
    assert "reads arrays, not texts" in refuse(*compared[:5], "--task", "sts", "--data", arrays)
    succeed("calibrate", model, "--random", "--out", tmp_path / "random.json", "--batches", 1, "--length", 16)


def test_a_graph_with_a_tokenizer_reads_texts(tmp_path: Path) -> None:
    foreign, model = tmp_path / "bert.onnx", tmp_path / "made" / "model.onnx"
    onnx.save(foreign_encoder(13), foreign)
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json")
    model.parent.mkdir()
    arguments = ("adopt", foreign, "--out", model, "--tokenizer", tokenizer, "--pooling", "mean")
    assert "task 'feature-extraction' reads 'last_hidden_state'" in refuse(*arguments)
    succeed(*arguments, "--rename", "hidden=last_hidden_state")
    info = read_info(model)
    assert (info.reads, info.vocab_size, info.max_length, info.num_layers, info.pooling) == (
        "tokens",
        50,
        24,
        1,
        "mean",
    )
    assert (model.parent / "tokenizer.json").read_bytes() == tokenizer.read_bytes()
    renamed = ("--rename", "hidden=last_hidden_state", "--force")
    assert "has input 'mask', which texts do not give" in refuse(
        *arguments, *renamed, "--rename", "attention_mask=mask"
    )
    assert "is not OLD=NEW" in refuse(*arguments, "--rename", "hidden", "--force")
    assert "exists; pass --force" in refuse(*arguments)
    assert "is a graph of quietformer already" in refuse("adopt", model, "--out", tmp_path / "again.onnx")
    assert "--pooling has no effect without --tokenizer" in refuse(
        "adopt", foreign, "--out", tmp_path / "x.onnx", "--pooling", "mean"
    )


def test_a_graph_with_preprocessing_reads_images(tmp_path: Path) -> None:
    from deploy.data.image_preprocessing import preprocessor_file

    graph = vit(VitRecipe())
    del graph.metadata_props[:]
    foreign, model = tmp_path / "vit.onnx", tmp_path / "model.onnx"
    onnx.save(graph, foreign)
    (tmp_path / "preprocessor_config.json").write_text(preprocessor_file(ENCODER))
    succeed("adopt", foreign, "--out", model, "--preprocessing", tmp_path / "preprocessor_config.json")
    info = read_info(model)
    assert info.reads == "pixels"
    assert info.image == json.loads(json.dumps(ENCODER.identity()))


def test_weights_beside_a_graph_are_read_and_written_beside_the_result(
    tmp_path: Path, arrays: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_writing, "EXTERNAL_DATA_LIMIT", 10_000)
    foreign, model, cache, int8 = (tmp_path / name for name in ("bert.onnx", "model.onnx", "c.json", "int8.onnx"))
    graph = foreign_encoder(17)
    convert_model_to_external_data(graph, location="bert.data", size_threshold=512)
    onnx.save(graph, foreign)
    assert external_files(read_structure(foreign)) == ["bert.data"]
    succeed("adopt", foreign, "--out", model)
    (written,) = external_files(read_structure(model))
    assert written.startswith("model.onnx.")
    succeed("calibrate", model, "--data", arrays, "--out", cache)
    succeed("quantize", model, "--calibration", cache, "--out", int8)
    assert len(external_files(read_structure(int8))) == 1
    succeed("compare", "--baseline", model, "--candidate", int8, "--task", "outputs", "--data", arrays)
    (tmp_path / "bert.data").unlink()
    assert "bert" in refuse("adopt", foreign, "--out", tmp_path / "again.onnx")


def test_a_graph_in_which_two_nodes_write_one_tensor_is_refused(tmp_path: Path) -> None:
    model = foreign_encoder(17)
    model.graph.node.append(model.graph.node[-1])
    onnx.save(model, tmp_path / "twice.onnx")
    assert "twice.onnx is not valid ONNX: " in refuse(
        "adopt", tmp_path / "twice.onnx", "--out", tmp_path / "model.onnx"
    )
    assert not (tmp_path / "model.onnx").exists()


def test_a_graph_of_one_batch_size_is_judged_and_explained_in_whole_batches(tmp_path: Path, arrays: Path) -> None:
    fixed = foreign_encoder(17)
    for value in (*fixed.graph.input, *fixed.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 4
    foreign, model, cache, int8 = (tmp_path / name for name in ("bert.onnx", "model.onnx", "c.json", "int8.onnx"))
    onnx.save(fixed, foreign)
    succeed("adopt", foreign, "--out", model)
    succeed("calibrate", model, "--data", arrays, "--out", cache, "--batch-size", 4)
    succeed("quantize", model, "--calibration", cache, "--out", int8)
    judged = ("--task", "outputs", "--data", arrays)
    told = succeed("compare", "--baseline", model, "--candidate", int8, *judged, "--backend", "onnxruntime").stdout
    assert "16 examples" in told
    explained = ("explain", model, "--calibration", cache, *judged, "--evaluate", 0, "--threads", 1)
    succeed(*explained, "--limit", 8, "--json", tmp_path / "found.json")
    assert [len(rows) for rows in json.loads((tmp_path / "found.json").read_text())["probe"]["rows"]] == [4, 4]
    searched = (*explained, "--limit", 8, "--profile", "paper", "--largest", 40)
    found = succeed(*searched, "--min-score", 25, "--out", tmp_path / "float.txt").stdout
    assert "exact in float" in found
    assert "nothing has to stay float" in found or "at least 25 passes" in found
    assert "give --min-score" in refuse(*searched, "--max-drop", 1)
    assert "takes exactly 4 rows at once; give a multiple of 4" in refuse(*explained, "--limit", 6)
