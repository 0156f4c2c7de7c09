"""What is no ONNX file is refused with the reason, as far as the file tells it."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx.external_data_helper import convert_model_to_external_data

from deploy.graphs.graph_structure import load_graph, read_outline, read_structure
from tests.deploy.encoder_graph import encoder

CONTENTS = {
    "empty": (b"", "it is empty"),
    "one byte of a graph": (b"\x08", "it is cut off"),
    "a text": (b"Ann went home.\nBob stayed.\n" * 40, "it is a text"),
    "JSON": (b'{"a": 1}', "it is a text"),
    "an archive": (b"PK\x03\x04" + bytes(range(256)) * 8, "it is no protobuf message"),
    "safetensors": (b"\x10\x00\x00\x00\x00\x00\x00\x00{}" + bytes(64), "it is no protobuf message"),
    "a model without a graph": (b"\x08\x0a\x12\x00", "it has no nodes"),
    "a field of another type": (b"\x08\x0a\x3a\x02\x0a\x07", "its protobuf message is damaged, or of another kind"),
}


@pytest.mark.parametrize("read", [read_outline, read_structure, load_graph])
@pytest.mark.parametrize("content", CONTENTS)
def test_the_reason_is_told(tmp_path: Path, content: str, read: object) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(CONTENTS[content][0])
    with pytest.raises(ValueError, match=f"model.onnx is not an ONNX model: {CONTENTS[content][1]}"):
        read(path)  # type: ignore[operator]


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_a_graph_that_was_cut_off_is_told_as_such(tmp_path: Path, share: float) -> None:
    whole = encoder().SerializeToString()
    path = tmp_path / "model.onnx"
    path.write_bytes(whole[: int(len(whole) * share)])
    for read in (read_outline, load_graph):
        with pytest.raises(ValueError, match="is not an ONNX model: it is cut off, as by an interrupted copy"):
            read(path)


def test_a_folder_is_told_as_such(tmp_path: Path) -> None:
    for read in (read_outline, read_structure, load_graph):
        with pytest.raises(IsADirectoryError, match="is a folder; expected an ONNX file"):
            read(tmp_path)


def test_lost_weights_are_not_taken_for_a_fault_of_the_graph(tmp_path: Path) -> None:
    model = encoder()
    convert_model_to_external_data(model, location="weights.data", size_threshold=64)
    onnx.save(model, tmp_path / "model.onnx")
    (tmp_path / "weights.data").unlink()
    with pytest.raises(ValueError, match=r"model\.onnx cannot be read with its weights: .*weights\.data"):
        load_graph(tmp_path / "model.onnx")
