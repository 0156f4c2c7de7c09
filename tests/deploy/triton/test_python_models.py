"""The models that run inside Triton's Python backend, with a stand-in for the module that Triton gives them."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from google.protobuf import json_format

from deploy.data.encoding import TextEncoder
from deploy.tasks.embedding import normalise, pool
from deploy.triton.config_text import read_config
from tests.deploy.encoder_graph import MAX_T
from tests.deploy.triton.sources import classifier_folder
from tests.deploy.triton.test_repository_writer import write

KINDS = {"TYPE_INT64": np.int64, "TYPE_FP32": np.float32, "TYPE_STRING": np.object_}


class Tensor:
    def __init__(self, name: str, values: np.ndarray) -> None:
        self.name, self.values = name, values

    def as_numpy(self) -> np.ndarray:
        return self.values


class TritonError(Exception):
    INVALID_ARG = 2


@pytest.fixture(autouse=True)
def triton_module(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("triton_python_backend_utils")
    module.Tensor, module.TritonError = Tensor, TritonError
    module.InferenceResponse = lambda tensors, error=None: SimpleNamespace(tensors=tensors, error=error)
    module.get_input_tensor_by_name = lambda request, name: Tensor(name, request[name])
    module.triton_string_to_numpy = KINDS.__getitem__
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", module)


def loaded(repository: Path, name: str) -> Any:
    """A model of a repository as Triton would make it."""
    config = json_format.MessageToDict(
        read_config(repository / name / "config.pbtxt"), preserving_proto_field_name=True
    )
    model = runpy.run_path(str(repository / name / "1" / "model.py"))["TritonPythonModel"]()
    model.initialize(
        {"model_config": json.dumps(config), "model_repository": str(repository / name), "model_version": "1"}
    )
    return model


def texts(*rows: bytes) -> dict[str, np.ndarray]:
    return {"TEXT": np.array([[row] for row in rows], np.object_)}


def test_texts_become_the_rows_that_our_encoder_makes_padded_to_few_lengths(run: Path, tmp_path: Path) -> None:
    model = loaded(write(run, tmp_path / "models"), "encoder-tokenizer")
    encoder = TextEncoder(run / "tokenizer.json", max_length=MAX_T, pad_token_id=0)
    rows = ["w1 w2 w3", "", " ".join(["w5"] * 60)]
    answers = model.execute([texts(*[row.encode() for row in rows]), texts(b"\xff"), texts(b"w1")])
    assert "not UTF-8" in str(answers[1].error)
    for answer, given, length in ((answers[0], rows, MAX_T), (answers[2], ["w1"], 8)):
        expected = encoder.feeds(encoder.encode(given), length=length)
        assert [tensor.name for tensor in answer.tensors] == list(expected)
        for tensor in answer.tensors:
            np.testing.assert_array_equal(tensor.values, expected[tensor.name])


def test_features_become_embeddings(run: Path, tmp_path: Path) -> None:
    model = loaded(write(run, tmp_path / "models"), "encoder-answer")
    features = np.random.default_rng(0).standard_normal((2, 5, 32)).astype(np.float32)
    mask = np.array([[1, 1, 1, 0, 0], [0, 0, 0, 0, 0]])
    answer = model.execute([{"last_hidden_state": features, "attention_mask": mask}])[0].tensors[0]
    assert answer.name == "EMBEDDING"
    np.testing.assert_allclose(answer.values, normalise(pool(features, mask, "mean")), rtol=1e-6)


def test_logits_become_labels_and_probabilities(tmp_path: Path) -> None:
    model = loaded(write(classifier_folder(tmp_path / "source"), tmp_path / "models"), "encoder-answer")
    label, scores = model.execute([{"logits": np.log(np.array([[1, 2, 7], [8, 1, 1]], np.float32))}])[0].tensors
    assert label.values.tolist() == [[b"good"], [b"bad"]]
    np.testing.assert_allclose(scores.values, [[0.1, 0.2, 0.7], [0.8, 0.1, 0.1]], rtol=1e-5)
