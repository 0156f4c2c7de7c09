"""Graphs of other tools, through the commands: adopted, then calibrated, quantized, linted, compared and benched."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.external_data_helper import convert_model_to_external_data

from deploy.data.image_preprocessing import preprocessor_file, read_image_encoder, read_preprocessing
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
    assert "reads arrays; outputs within" in told or "reads arrays; outputs identical" in told
    assert "1 attention layer recognised" in told
    assert f"next: quietformer calibrate {model} --data X.npz" in told
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
    told = refuse(*arguments)
    assert "task 'feature-extraction' reads 'last_hidden_state': give --rename hidden=last_hidden_state" in told
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
    odd = ("--rename", "attention_mask=mask", "--rename", "input_ids=tokens")
    told = refuse(*arguments, *renamed, *odd)
    assert "has input 'tokens', which texts do not give" in told
    assert "give --rename tokens=input_ids --rename mask=attention_mask" in told
    assert "is not OLD=NEW" in refuse(*arguments, "--rename", "hidden", "--force")
    assert "exists; pass --force" in refuse(*arguments)
    assert "is a graph of quietformer already" in refuse("adopt", model, "--out", tmp_path / "again.onnx")
    assert "--pooling has no effect without --tokenizer" in refuse(
        "adopt", foreign, "--out", tmp_path / "x.onnx", "--pooling", "mean"
    )


def test_the_tokenizer_of_another_graph_in_the_folder_is_not_left_in_its_place(tmp_path: Path) -> None:
    foreign, model = tmp_path / "bert.onnx", tmp_path / "made" / "model.onnx"
    onnx.save(foreign_encoder(13), foreign)
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json")
    model.parent.mkdir()
    beside = model.parent / "tokenizer.json"
    beside.write_text("{}")
    texts = ("--tokenizer", tokenizer, "--pooling", "mean", "--rename", "hidden=last_hidden_state")
    given = ("adopt", foreign, "--out", model, *texts)
    assert f"{beside} exists; pass --force" in refuse(*given)
    assert beside.read_text() == "{}"
    assert not model.exists()
    succeed(*given, "--force")
    assert beside.read_bytes() == tokenizer.read_bytes()


def foreign_vit(path: Path) -> onnx.ModelProto:
    graph = vit(VitRecipe())
    del graph.metadata_props[:]
    onnx.save(graph, path)
    return graph


@pytest.mark.parametrize("name", ["preprocessor_config.json", "pp.json"])
def test_a_graph_with_preprocessing_reads_images_whatever_the_file_is_called(tmp_path: Path, name: str) -> None:
    foreign, model, file = tmp_path / "vit.onnx", tmp_path / "made" / "model.onnx", tmp_path / name
    foreign_vit(foreign)
    file.write_text(preprocessor_file(ENCODER))
    told = succeed("adopt", foreign, "--out", model, "--preprocessing", file).stdout
    assert "outputs identical to the source's" in told
    assert "2 attention layers recognised" in told
    info = read_info(model)
    assert (info.reads, info.num_layers) == ("pixels", 2)
    assert info.image == json.loads(json.dumps(ENCODER.identity()))
    assert (model.parent / "preprocessor_config.json").read_bytes() == file.read_bytes()


def test_timm_s_notation_is_read_under_any_name_too(tmp_path: Path) -> None:
    foreign, file = tmp_path / "vit.onnx", tmp_path / "pp.json"
    foreign_vit(foreign)
    file.write_text(json.dumps({"pretrained_cfg": {"input_size": [3, 16, 16]}}))
    succeed("adopt", foreign, "--out", tmp_path / "made" / "model.onnx", "--preprocessing", file)
    beside = tmp_path / "made" / "preprocessor_config.json"
    assert read_preprocessing(beside) == read_preprocessing(file)
    assert read_image_encoder(beside.parent) == read_preprocessing(file)


def test_preprocessing_that_is_none_is_refused_with_what_is_expected(tmp_path: Path) -> None:
    foreign, file = tmp_path / "vit.onnx", tmp_path / "pp.json"
    graph = foreign_vit(foreign)
    arguments = ("adopt", foreign, "--out", tmp_path / "model.onnx", "--preprocessing")
    file.write_text('{"model_type": "vit", "image_size": 16}')
    assert "pp.json does not say how images are prepared; expected the keys of" in refuse(*arguments, file)
    file.write_text("pp")
    assert "pp.json is not JSON" in refuse(*arguments, file)
    assert "is a folder; expected a file" in refuse(*arguments, tmp_path)
    assert "no file at " in refuse(*arguments, tmp_path / "absent.json")
    file.write_text(preprocessor_file(ENCODER))
    told = refuse(*arguments, file, "--rename", f"{graph.graph.input[0].name}=input_image")
    assert "images give pixel_values alone: give --rename input_image=pixel_values" in told


def test_attention_that_is_not_recognised_is_told_as_what_it_means(tmp_path: Path) -> None:
    graph = vit(VitRecipe())
    del graph.metadata_props[:]
    for node in graph.graph.node:
        if node.op_type == "Softmax":
            node.op_type = "LogSoftmax"
    onnx.save(graph, tmp_path / "vit.onnx")
    told = succeed("adopt", tmp_path / "vit.onnx", "--out", tmp_path / "model.onnx").stdout
    assert "attention not recognised: its products stay float in every profile" in told
    assert "largest difference" not in told


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
