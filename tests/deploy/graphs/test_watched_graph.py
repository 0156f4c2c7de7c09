"""Inner tensors as outputs: right values, nothing computed in vain, weights where they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from deploy.graphs.graph_structure import files_beside
from deploy.graphs.model_hash import model_sha256
from deploy.graphs.watched_graph import WatchedGraph
from tests.deploy.encoder_graph import EncoderRecipe, encoder, feeds

NAMES = ["prob_0", "x", "act_0", "hidden"]


@pytest.fixture
def model_path(tmp_path: Path) -> Path:
    onnx.save(encoder(EncoderRecipe(head=True)), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_values_equal_the_reference_evaluator(model_path: Path) -> None:
    reference = onnx.load(model_path)
    reference.graph.output.extend(onnx.ValueInfoProto(name=name) for name in NAMES)
    from onnx.reference import ReferenceEvaluator

    expected = ReferenceEvaluator(reference).run(NAMES, feeds())
    found = WatchedGraph(model_path).open(NAMES).run(feeds())
    assert list(found) == NAMES
    for name, array in zip(NAMES, expected, strict=True):
        np.testing.assert_allclose(found[name], array, atol=1e-5, err_msg=name)


def test_only_shapes_can_be_asked_for(model_path: Path) -> None:
    shapes = WatchedGraph(model_path).open(NAMES, shapes_only=True).run(feeds(batch=3, length=5))
    assert {name: shape.tolist() for name, shape in shapes.items()} == {
        "prob_0": [3, 2, 5, 5], "x": [3, 5, 32], "act_0": [3, 5, 64], "hidden": [3, 5, 32],
    }  # fmt: skip


def test_an_input_can_be_watched(model_path: Path) -> None:
    found = WatchedGraph(model_path).open(["attention_mask", "x"]).run(feeds())
    assert np.array_equal(found["attention_mask"], feeds()["attention_mask"])


@pytest.mark.parametrize("kind", [onnx.TensorProto.INT32, onnx.TensorProto.BOOL, onnx.TensorProto.FLOAT])
def test_masks_and_ids_of_other_types_are_fed_as_the_graph_takes_them(model_path: Path, kind: int) -> None:
    model = onnx.load(model_path)
    expected = WatchedGraph(model_path).open(NAMES).run(feeds())
    for value in model.graph.input:
        if value.name == "attention_mask" or kind == onnx.TensorProto.INT32:
            value.type.tensor_type.elem_type = kind
            wide = onnx.helper.make_node("Cast", [value.name], [f"{value.name}/wide"], to=onnx.TensorProto.INT64)
            for node in model.graph.node:
                node.input[:] = [wide.output[0] if name == value.name else name for name in node.input]
            model.graph.node.insert(0, wide)
    onnx.save(model, model_path)
    found = WatchedGraph(model_path).open(NAMES).run(feeds())
    for name in NAMES:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


def test_what_no_watched_tensor_needs_is_not_there(model_path: Path) -> None:
    found = WatchedGraph(model_path).open(["word"]).run({"input_ids": np.array([[3]])})
    assert found["word"].shape == (1, 1, 32)


def test_external_weights_are_used_from_where_they_are(model_path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "external"
    folder.mkdir()
    onnx.save(
        onnx.load(model_path),
        folder / "m.onnx",
        save_as_external_data=True,
        location="m.onnx.data",
        size_threshold=1024,
    )
    graph = WatchedGraph(folder / "m.onnx")
    assert files_beside(graph.path) == ["m.onnx.data"]
    found, expected = graph.open(NAMES).run(feeds()), WatchedGraph(model_path).open(NAMES).run(feeds())
    assert all(np.array_equal(found[name], expected[name]) for name in NAMES)


def test_the_hash_of_a_model_covers_its_external_weights(model_path: Path, tmp_path: Path) -> None:
    onnx.save(onnx.load(model_path), tmp_path / "e.onnx", save_as_external_data=True, location="w", size_threshold=1024)
    before = model_sha256(tmp_path / "e.onnx")
    assert before == model_sha256(tmp_path / "e.onnx") != model_sha256(model_path)
    weights = bytearray((tmp_path / "w").read_bytes())
    weights[100] ^= 1
    (tmp_path / "w").write_bytes(weights)
    assert model_sha256(tmp_path / "e.onnx") != before
    (tmp_path / "w").unlink()
    with pytest.raises(FileNotFoundError, match="keeps weights in w, which is not beside it"):
        model_sha256(tmp_path / "e.onnx")


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no ONNX file at"):
        WatchedGraph(tmp_path / "absent.onnx")
    (tmp_path / "text.onnx").write_text("not a model")
    with pytest.raises(ValueError, match="is not an ONNX model"):
        WatchedGraph(tmp_path / "text.onnx")


def test_feeds_that_do_not_fit_are_named_with_their_shapes(model_path: Path) -> None:
    wrong = feeds() | {"attention_mask": np.ones((2, 3), np.int64)}
    with pytest.raises(ValueError, match=r"the graph cannot run on input_ids \[2, 7\], attention_mask \[2, 3\]"):
        WatchedGraph(model_path).open(["prob_0"]).run(wrong)
