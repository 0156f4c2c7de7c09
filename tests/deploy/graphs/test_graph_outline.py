"""Outlines: a graph without its weights, the weights read from where they lie, and the whole written again, byte for byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from deploy.graphs.graph_encoding import encoded_graph
from deploy.graphs.graph_structure import files_beside, load_graph, read_outline, read_structure
from deploy.graphs.graph_writing import checked_before_replacing
from deploy.graphs.model_hash import model_sha256
from deploy.graphs.stored_constants import constant_array, constant_bytes, constant_size, is_reference
from tests.deploy.encoder_graph import EncoderRecipe, encoder

TYPES: tuple[Any, ...] = (
    np.float32,
    np.float16,
    np.int8,
    np.int64,
    onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.FLOAT8E4M3FN),
)


def model() -> onnx.ModelProto:
    """A graph with small constants and large ones of several types, one of them without raw bytes."""
    made = encoder(EncoderRecipe())
    values = np.random.default_rng(0).integers(-5, 5, (300, 301))
    for number, kind in enumerate(TYPES):
        made.graph.initializer.append(onnx.numpy_helper.from_array(values.astype(kind), f"large{number}"))
    made.graph.initializer.add(
        name="listed", dims=[20_000], data_type=onnx.TensorProto.FLOAT, float_data=[0.5] * 20_000
    )
    last = made.graph.initializer.add(name="told", dims=[70_000], data_type=onnx.TensorProto.INT8, doc_string="why")
    last.raw_data = bytes(range(250)) * 280
    made.graph.doc_string = "behind the constants"
    return made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "model.onnx"
    onnx.save(model(), file)
    return file


def test_an_outline_is_small_and_its_constants_read_as_those_of_the_graph(path: Path) -> None:
    outline, whole = read_outline(path), load_graph(path)
    references = [tensor for tensor in outline.graph.initializer if is_reference(tensor, path)]
    assert [tensor.name for tensor in references] == [*(f"large{number}" for number in range(len(TYPES))), "told"]
    assert len(outline.SerializeToString()) < len(whole.SerializeToString()) / 5
    for tensor, held in zip(outline.graph.initializer, whole.graph.initializer, strict=True):
        expected = onnx.numpy_helper.to_array(held)
        found = constant_array(tensor, path)
        assert found.dtype == expected.dtype
        assert found.tobytes() == expected.tobytes()
        assert found.shape == expected.shape
        assert b"".join(map(bytes, constant_bytes(tensor, path))) == held.raw_data
        assert constant_size(tensor, path) == len(held.raw_data)
    assert outline.graph.node == whole.graph.node


def test_a_graph_is_encoded_as_protobuf_does_it(path: Path) -> None:
    expected = load_graph(path).SerializeToString(deterministic=True)
    assert b"".join(map(bytes, encoded_graph(read_outline(path), path))) == expected
    assert b"".join(map(bytes, encoded_graph(load_graph(path)))) == expected


@pytest.mark.parametrize("limit", [1000, 10**9], ids=["weights beside", "one file"])
def test_an_outline_is_written_as_the_graph_would_be(
    path: Path, tmp_path: Path, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deploy.graphs.graph_writing.EXTERNAL_DATA_LIMIT", limit)
    whole = load_graph(path)
    del whole.graph.initializer[-2]  # not stored as raw bytes, which graphs in form are
    onnx.save(whole, path)
    out = [tmp_path / name / "written.onnx" for name in ("outline", "whole")]
    for file, read, source in zip(out, (read_outline, load_graph), (path, None), strict=True):
        with checked_before_replacing(read(path), file, source=source) as written:
            onnx.checker.check_model(written)
    contents = [{part.name: part.read_bytes() for part in file.parent.iterdir()} for file in out]
    assert contents[0] == contents[1]
    assert len(files_beside(out[0])) == (1 if limit == 1000 else 0)
    again = tmp_path / "again" / "written.onnx"
    with checked_before_replacing(read_outline(out[0]), again, source=out[0]):
        pass
    assert {part.name: part.read_bytes() for part in again.parent.iterdir()} == contents[0]
    assert model_sha256(again) == model_sha256(out[1])


def test_a_constant_of_a_graph_that_was_cut_off_is_told(path: Path) -> None:
    tensor = next(tensor for tensor in read_outline(path).graph.initializer if tensor.name == "told")
    content = path.read_bytes()
    path.write_bytes(content[: content.index(bytes(range(250))) + 100])
    with pytest.raises(ValueError, match=r"model\.onnx ends before the values"):
        constant_array(tensor, path)
    with pytest.raises(ValueError, match=r"model\.onnx ends before the values"):
        list(constant_bytes(tensor, path))


@pytest.mark.parametrize("size", [0, 1, 100, 30_000, -1])
def test_what_is_no_whole_graph_is_refused_as_when_all_is_read(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])
    for read in (read_outline, read_structure):
        with pytest.raises(ValueError, match=r"model\.onnx is not an ONNX model"):
            read(path)


def test_values_that_do_not_fit_the_shape_are_refused(path: Path) -> None:
    broken = load_graph(path)
    broken.graph.initializer[-1].dims[0] = 70_001
    onnx.save(broken, path)
    with pytest.raises(ValueError, match="reshape"):
        constant_array(read_outline(path).graph.initializer[-1], path)
