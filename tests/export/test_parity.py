"""Agreement with PyTorch: the feeds, the shapes, and the errors of a graph that disagrees."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from export.parity import Parity, allowed_difference, check_parity, open_session, parity_shapes, random_feeds
from export.tracing import GraphInterface
from tests.export.conftest import ExportTiny


def _interface(*, max_length: int = 48, length: int | None = None, ids: torch.dtype = torch.int64) -> GraphInterface:
    return GraphInterface(output="last_hidden_state", token_types=True, ids=ids, max_length=max_length, length=length)


@pytest.mark.parametrize("length", [None, 1, 24])
@pytest.mark.parametrize("max_length", [1, 5, 48, 512])
def test_compared_shapes_are_not_the_traced_one(max_length: int, length: int | None) -> None:
    interface = _interface(max_length=max_length, length=length)
    shapes = parity_shapes(interface)
    assert len(set(shapes)) == 3
    assert interface.traced_shape not in shapes
    assert max(tokens for _, tokens in shapes if tokens is not None) == (length or max_length)


def test_feeds_are_padded_at_random_and_the_same_for_the_same_seed() -> None:
    interface = _interface(ids=torch.int32)
    feeds = random_feeds(interface, (6, 20), vocab_size=30, pad_token_id=29)
    assert list(feeds) == ["input_ids", "attention_mask", "token_type_ids"]
    assert {array.dtype for array in feeds.values()} == {np.dtype(np.int32)}
    lengths = feeds["attention_mask"].sum(1)
    assert lengths[0] == 20
    assert lengths.min() >= 1
    assert len(set(lengths)) > 2
    assert (feeds["input_ids"][feeds["attention_mask"] == 0] == 29).all()
    again = random_feeds(interface, (6, 20), vocab_size=30, pad_token_id=29)
    assert all(np.array_equal(feeds[name], again[name]) for name in feeds)


def test_rows_are_padded_behind_before_and_on_both_sides_of_their_tokens() -> None:
    mask_BT = random_feeds(_interface(), (8, 40), vocab_size=30, pad_token_id=29)["attention_mask"]
    begins, ends = mask_BT.argmax(1), 40 - mask_BT[:, ::-1].argmax(1)
    assert (ends - begins == mask_BT.sum(1)).all()
    assert (begins[1], ends[1] < 40) == (0, True)
    assert (begins[2] > 0, ends[2]) == (True, 40)
    assert ((begins[3:] > 0) & (ends[3:] < 40)).any()


def test_a_model_of_very_many_positions_is_compared_at_2048_tokens() -> None:
    assert parity_shapes(_interface(max_length=8192)) == ((1, 7), (3, 33), (1, 2048))


def test_the_allowed_difference_is_absolute_and_grows_only_with_large_outputs() -> None:
    assert [allowed_difference(largest, float16=False) for largest in (0.1, 10.0, 30.0)] == pytest.approx(
        [1e-4, 1e-4, 3e-4]
    )
    assert allowed_difference(2.0, float16=True) == pytest.approx(0.01)


def _changed(path: Path, out: Path, *, to: float) -> Path:
    model = onnx.load(path)
    bias = next(tensor for tensor in model.graph.initializer if tensor.name == "encoder.layer.0.output.LayerNorm.bias")
    values = numpy_helper.to_array(bias).copy()
    values[3] += to
    bias.CopyFrom(numpy_helper.from_array(values, bias.name))
    onnx.save(model, out)
    return out


@pytest.mark.parametrize(("change", "said"), [(0.01, "is 0.01"), (float("nan"), "is nan")])
def test_a_graph_that_disagrees_is_refused_with_shape_and_difference(
    export_tiny: ExportTiny, tmp_path: Path, change: float, said: str
) -> None:
    exported = export_tiny(model={"num_layers": 1})
    wrong = _changed(exported.path, tmp_path / "wrong.onnx", to=change)
    with pytest.raises(ValueError, match=f"disagree at batch 1, length 7: largest absolute difference .* {said}"):
        check_parity(wrong, exported.model, _interface(), vocab_size=100, pad_token_id=0)


def test_a_graph_that_the_runtime_refuses_is_a_users_error(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"no graph")
    with pytest.raises(ValueError, match=r"ONNX Runtime .* refuses the graph"):
        open_session(tmp_path / "model.onnx")


def test_parity_is_read_by_people_as_shape_and_difference() -> None:
    assert str(Parity(batch=3, length=33, max_difference=4.77e-7, max_output=2.0)) == "3x33: 4.8e-07"
