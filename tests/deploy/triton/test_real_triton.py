"""The real Triton on what quietformer writes: loads it unchanged, answers as the bare session, accepts plans up to the GPU.

QUIETFORMER_TRITONSERVER names a ``tritonserver``; the one in the ``nvidia-pytriton`` wheel runs on a CPU. Where it has no
ONNX Runtime backend, the one in ``backends`` here takes its place, in the Python of that wheel.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import tritonclient.http as triton

from deploy.data.encoding import TextEncoder
from deploy.tasks.embedding import normalise, pool
from deploy.triton.config_text import read_config, to_text
from deploy.triton.real_triton import MISSING_BACKEND, RunningTriton, check_by_loading, running_triton
from deploy.triton.repository_settings import RUNTIMES
from tests.deploy.encoder_graph import MAX_T, feeds
from tests.deploy.triton.sources import classifier_folder, engine_folder
from tests.deploy.triton.test_repository_writer import write

BACKENDS = Path(__file__).parent / "backends"
TEXTS = ["w1 w2 w3", "w4", "", " ".join(["w5"] * 60), "nobody knows these words"]


@pytest.fixture(scope="session")
def binary() -> Path:
    found = os.environ.get("QUIETFORMER_TRITONSERVER")
    if found is None:
        pytest.skip("QUIETFORMER_TRITONSERVER names no tritonserver")
    return Path(found)


@pytest.fixture(scope="session")
def served(binary: Path, run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningTriton, Path]]:
    folder = tmp_path_factory.mktemp("served")
    models = write(run, folder / "models", response_cache=True)
    labels = write(classifier_folder(folder / "classifier"), folder / "labels", name="classifier")
    for model in labels.glob("classifier*"):
        shutil.move(model, models / model.name)
    options = ["--cache-config=local,size=1048576"]
    with running_triton(binary, models, options=options, backends=BACKENDS) as server:
        yield server, models


def inputs_of(arrays: dict[str, np.ndarray]) -> list[triton.InferInput]:
    made = []
    for name, array in arrays.items():
        tensor = triton.InferInput(name, list(array.shape), "BYTES" if array.dtype == object else "INT64")
        tensor.set_data_from_numpy(array)
        made.append(tensor)
    return made


def test_it_loads_every_model_and_answers_as_the_bare_session(served: tuple[RunningTriton, Path]) -> None:
    server, models = served
    assert {entry["state"] for entry in server.index()} == {"READY"}
    session = onnxruntime.InferenceSession(models / "encoder/1/model.onnx", providers=["CPUExecutionProvider"])
    with triton.InferenceServerClient(server.http) as client:
        for batch, length in ((1, 1), (3, 7), (8, MAX_T)):
            given = feeds(batch=batch, length=length)
            found = client.infer("encoder", inputs_of(given)).as_numpy("last_hidden_state")
            np.testing.assert_allclose(found, session.run(None, given)[0], rtol=1e-5, atol=1e-5)
        again = client.infer("encoder", inputs_of(given)).as_numpy("last_hidden_state")
        np.testing.assert_array_equal(again, found)
        statistics = client.get_inference_statistics("encoder")["model_stats"][0]["inference_stats"]
    assert statistics["cache_hit"]["count"] == 1


def test_texts_become_the_embeddings_of_tokenizer_graph_and_pooling(
    served: tuple[RunningTriton, Path], run: Path
) -> None:
    server, models = served
    encoder = TextEncoder(run / "tokenizer.json", max_length=MAX_T, pad_token_id=0)
    session = onnxruntime.InferenceSession(models / "encoder/1/model.onnx", providers=["CPUExecutionProvider"])
    given = encoder.feeds(encoder.encode(TEXTS), length=MAX_T)
    expected = normalise(pool(session.run(None, given)[0], given["attention_mask"], "mean"))
    texts = np.array([[text.encode()] for text in TEXTS], np.object_)
    with triton.InferenceServerClient(server.http) as client:
        found = client.infer("encoder-text", inputs_of({"TEXT": texts})).as_numpy("EMBEDDING")
        answer = client.infer("classifier-text", inputs_of({"TEXT": texts}))
        broken = np.array([[b"\xff"]], np.object_)
        with pytest.raises(triton.InferenceServerException, match="not UTF-8"):
            client.infer("encoder-text", inputs_of({"TEXT": broken}))
    np.testing.assert_allclose(found, expected, atol=1e-4)
    scores = answer.as_numpy("SCORES")
    np.testing.assert_allclose(scores.sum(axis=1), 1, rtol=1e-5)
    names = np.array([b"bad", b"fair", b"good"])
    assert answer.as_numpy("LABEL")[:, 0].tolist() == names[scores.argmax(axis=1)].tolist()


def test_it_accepts_the_other_runtimes_up_to_the_missing_backend(binary: Path, run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    engine_folder(copy / "engine", copy / "model.int8.onnx")
    for runtime in RUNTIMES[1:]:
        made = write(
            copy, tmp_path / runtime, name=runtime, runtime=runtime, cuda_graphs=runtime == "tensorrt", texts=False
        )
        shutil.move(made / runtime, tmp_path / "models" / runtime)
    with running_triton(binary, tmp_path / "models", backends=BACKENDS) as server:
        reasons = {entry["name"]: entry.get("reason", "") for entry in server.index()}
    assert set(reasons) == set(RUNTIMES[1:])
    for reason in reasons.values():  # none where this Triton can run it
        assert not reason or MISSING_BACKEND.search(reason), reasons
    assert check_by_loading(binary, tmp_path / "models", backends=BACKENDS) == []


def test_what_it_refuses_is_a_finding(binary: Path, run: Path, tmp_path: Path) -> None:
    models = write(run, tmp_path / "models")
    path = models / "encoder/config.pbtxt"
    config = read_config(path)
    config.dynamic_batching.preferred_batch_size.append(9)
    path.write_text(to_text(config))
    found = check_by_loading(binary, models, backends=BACKENDS)
    assert found[0].model == "encoder"
    assert "preferred" in found[0].message
