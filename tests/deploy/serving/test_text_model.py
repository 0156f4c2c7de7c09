from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import tritonclient.http as triton

from deploy.backends.opening import open_backend
from deploy.data.encoding import TextEncoder
from deploy.files import sha256_file
from deploy.graphs.graph_info import GraphInfo
from deploy.serving.batcher import BatchingSettings
from deploy.serving.inference_messages import InferRequest
from deploy.serving.loading import Generation, ModelSettings, find_artifact, load_generation
from deploy.tasks.embedding import normalise, pool
from tests.deploy.encoder_graph import D, from_text
from tests.deploy.serving.conformance_cases import MODEL, OUTPUT, POSITIONS
from tests.deploy.serving.served_model import Server, running
from tests.deploy.word_tokenizer import write_tokenizer

TEXTS = ["w1 w2 w3", "w4", "", " ".join(["w5"] * 60), "nobody knows these words"]


def text_input(texts: list[str], *, binary: bool = True) -> list[triton.InferInput]:
    tensor = triton.InferInput("TEXT", [len(texts), 1], "BYTES")
    array = np.array([text.encode() for text in texts], np.object_)[:, None]
    tensor.set_data_from_numpy(array, binary_data=binary)
    return [tensor]


@pytest.mark.parametrize("binary", [True, False])
def test_texts_become_the_embeddings_that_tokenizer_graph_and_pooling_give(
    server: Server, folder: Path, binary: bool
) -> None:
    encoder = TextEncoder(folder / "tokenizer.json", max_length=POSITIONS, pad_token_id=0)
    expected = []
    with open_backend("onnxruntime", folder / "model.onnx") as backend:
        for row in encoder.encode(TEXTS):
            feeds = encoder.feeds([row])
            expected.append(pool(backend.infer(feeds)[OUTPUT], feeds["attention_mask"], "mean"))
    with triton.InferenceServerClient(server.target.address) as client:
        metadata = client.get_model_metadata(f"{MODEL}-text")
        found = client.infer(f"{MODEL}-text", text_input(TEXTS, binary=binary)).as_numpy("EMBEDDING")
    assert metadata["inputs"] == [{"name": "TEXT", "datatype": "BYTES", "shape": [-1, 1]}]
    assert metadata["outputs"] == [{"name": "EMBEDDING", "datatype": "FP32", "shape": [-1, D]}]
    np.testing.assert_allclose(found, normalise(np.concatenate(expected)), atol=1e-5)


def test_bytes_that_are_not_utf8_are_refused(server: Server) -> None:
    tensor = triton.InferInput("TEXT", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[b"\xff\xfe"]], np.object_))
    with (
        triton.InferenceServerClient(server.target.address) as client,
        pytest.raises(triton.InferenceServerException, match="UTF-8"),
    ):
        client.infer(f"{MODEL}-text", [tensor])


def test_curl_gets_an_embedding(server: Server) -> None:
    body = {"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1, 1], "data": ["w1"]}]}
    status, _, answer = server.target.ask("POST", f"/v2/models/{MODEL}-text/infer", json.dumps(body).encode())
    assert status == 200
    (output,) = json.loads(answer)["outputs"]
    assert np.isclose(np.linalg.norm(output["data"]), 1, atol=1e-5)


def test_a_classifier_answers_with_the_names_of_its_classes(tmp_path: Path) -> None:
    model = from_text("""classifier (int64[B,T] input_ids, int64[B,T] attention_mask) => (float[B,3] logits)
        <float[50,3] table> {
            one = Constant<value_ints=[1]>() minus = Constant<value_ints=[-1]>()
            rows = Gather<axis=0>(table, input_ids) kept = Cast<to=1>(attention_mask) k3 = Unsqueeze(kept, minus)
            marked = Mul(rows, k3) logits = ReduceSum<keepdims=0>(marked, one) }""")
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json")
    names = ("bad", "fair", "good")
    info = GraphInfo(task="text-classification", family="bert", max_length=16, vocab_size=50, pad_token_id=0,
                     num_layers=0, labels=names, tokenizer_sha256=sha256_file(tokenizer))  # fmt: skip
    info.write(model)
    onnx.save(model, tmp_path / "model.onnx")
    rows = TextEncoder(tokenizer, max_length=16).encode(texts := ["w1 w2", "w7 w8 w9", "w3"])
    table = onnx.numpy_helper.to_array(next(t for t in model.graph.initializer if t.name == "table"))
    logits = np.stack([table[row].sum(axis=0) for row in rows])
    with (
        running(tmp_path, log=tmp_path / "log") as started,
        triton.InferenceServerClient(started.target.address) as client,
    ):
        found = client.infer(f"{MODEL}-text", text_input(texts))
        labels, scores = found.as_numpy("LABEL"), found.as_numpy("SCORES")
    assert [label.decode() for label in labels[:, 0]] == [names[best] for best in logits.argmax(axis=1)]
    exponents = np.exp(logits - logits.max(axis=1, keepdims=True))
    np.testing.assert_allclose(scores, exponents / exponents.sum(axis=1, keepdims=True), atol=1e-5)


@pytest.mark.parametrize("rows", [1, 4])
def test_a_graph_of_one_row_takes_one_text_and_one_of_more_rows_takes_none(
    folder: Path, tmp_path: Path, rows: int
) -> None:
    model = onnx.load(folder / "model.onnx")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = rows
    onnx.save(model, tmp_path / "model.onnx")
    shutil.copy(folder / "tokenizer.json", tmp_path)
    settings = ModelSettings(path=tmp_path, name="m", threads=1, batching=BatchingSettings(max_rows=8))
    text = InferRequest(
        id="", inputs={"TEXT": np.array([[b"w1 w2"]], np.object_)}, outputs=(), binary_outputs=True, timeout=None
    )

    async def story() -> tuple[Generation, np.ndarray | None]:
        generation = await load_generation(settings, await find_artifact(settings), "1")
        try:
            answer = await generation.models["m-text"].infer(text) if "m-text" in generation.models else None
        finally:
            await generation.retire()
        return generation, None if answer is None else answer.outputs["EMBEDDING"]

    generation, embedding = asyncio.run(asyncio.wait_for(story(), 60))
    if rows == 1:
        signature = generation.models["m-text"].signature
        assert [signature.full_shape(spec) for spec in (*signature.inputs, *signature.outputs)] == [(-1, 1), (-1, D)]
        assert embedding is not None
        assert embedding.shape == (1, D)
    else:
        assert embedding is None
        assert generation.notes[-1] == "m-text: not served, a text is one row, and its inputs have 4"


def test_a_foreign_tokenizer_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes((folder / "model.onnx").read_bytes())
    write_tokenizer(tmp_path / "tokenizer.json", words=39)
    with (
        pytest.raises(AssertionError, match="not the tokenizer that the graph was exported with"),
        running(tmp_path, log=tmp_path / "log"),
    ):
        pass


def test_without_a_tokenizer_the_tensors_alone_are_served_and_the_reason_is_told(folder: Path, tmp_path: Path) -> None:
    graph = tmp_path / "model.onnx"
    model = onnx.load(folder / "model.onnx")
    replace(GraphInfo.read(model, name="model"), pooling=None).write(model)
    onnx.save(model, graph)
    with running(graph, log=tmp_path / "log") as started:
        assert "encoder-text: not served, the checkpoint does not say how" in started.log.read_text()
        assert started.target.ask("GET", f"/v2/models/{MODEL}-text")[0] == 404
        assert started.target.ask("GET", f"/v2/models/{MODEL}")[0] == 200
