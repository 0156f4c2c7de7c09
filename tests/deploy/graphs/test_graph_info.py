"""Metadata of a graph comes back as it was written, or the file is refused with the entry that is wrong."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import onnx
import pytest

from deploy.graphs.graph_info import METADATA_KEY, GraphInfo

INFO = GraphInfo(
    task="feature-extraction", family="bert", max_length=48, vocab_size=99, pad_token_id=0, num_layers=2,
    length=16, pooling="mean", attention={"gate": "linear"}, profile="tensorrt",
)  # fmt: skip


IMAGE_INFO = GraphInfo(
    task="image-classification", family="vit", max_length=17, vocab_size=0, pad_token_id=0, num_layers=2,
    image={"height": 32, "mean": [0.5, 0.5, 0.5]}, labels=("cat", "dog"),
)  # fmt: skip


def model_with(text: str) -> onnx.ModelProto:
    model = onnx.ModelProto()
    onnx.helper.set_model_props(model, {METADATA_KEY: text, "other": "kept"})
    return model


def test_what_is_written_is_read_and_other_metadata_stays() -> None:
    model = model_with("old")
    for info, reads in ((INFO, "tokens"), (IMAGE_INFO, "pixels")):
        info.write(model)
        assert GraphInfo.read(model, name="m.onnx") == info
        assert info.reads == reads
    assert {entry.key: entry.value for entry in model.metadata_props}["other"] == "kept"


def test_a_graph_without_metadata_says_how_to_get_it() -> None:
    with pytest.raises(ValueError, match=r"m\.onnx carries no quietformer metadata; export it"):
        GraphInfo.read(onnx.ModelProto(), name="m.onnx")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "m.onnx has damaged quietformer metadata: not JSON"),
        ("[]", "damaged quietformer metadata: a JSON list, not an object"),
        ("{}", "damaged quietformer metadata: 'task' is missing"),
    ],
)
def test_what_is_no_metadata_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GraphInfo.read(model_with(text), name="m.onnx")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_length", "long"),
        ("max_length", True),
        ("vocab_size", None),
        ("task", "translation"),
        ("pooling", "max"),
        ("length", 1.5),
        ("attention", []),
        ("not_for_accuracy", 0),
        ("labels", "cat"),
        ("labels", ["cat", 1]),
        ("image", [224]),
    ],
)
def test_a_value_of_another_type_is_named(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"m.onnx has damaged quietformer metadata: '{name}' is"):
        GraphInfo.read(model_with(json.dumps(asdict(INFO) | {name: value})), name="m.onnx")


def test_an_entry_of_another_version_is_named() -> None:
    with pytest.raises(ValueError, match="unknown quietformer metadata 'colour'; it was written by another version"):
        GraphInfo.read(model_with(json.dumps(asdict(INFO) | {"colour": 1})), name="m.onnx")
