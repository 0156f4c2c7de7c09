"""Batch and token axes are found in graphs of open and of static length, even where the length is the width of a head."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from deploy.calibration.token_axes import TensorLayout, layout_from_shapes, real_parts
from deploy.calibration.token_layouts import find_layouts
from deploy.graphs.sites import observed_tensors
from deploy.graphs.watched_graph import WatchedGraph
from tests.deploy.encoder_graph import D, EncoderRecipe, F, H, encoder

HEAD = D // H
RUNS = [(2, 5), (3, 7)]
EXPECTED: dict[str, tuple[int | None, ...]] = {
    "x": (None, D), "q_0": (None, D), "q4_0": (None, H, HEAD), "qt_0": (H, None, HEAD), "kt_0": (H, HEAD, None),
    "score_0": (H, None, None), "prob_0": (H, None, None), "c4_0": (H, None, HEAD), "ctx_0": (None, D), "r1_0": (None, D),
    "act_0": (None, F), "hidden": (None, D),
}  # fmt: skip
"""Layout of one row; None is a token axis."""


def graph_at(path: Path, *, batch: int | None = None, length: int | None = None, **recipe: object) -> WatchedGraph:
    model = encoder(EncoderRecipe(**recipe))  # type: ignore[arg-type]
    for value in model.graph.input:
        for size, dim in zip((batch, length), value.type.tensor_type.shape.dim, strict=True):
            if size is not None:
                dim.dim_value = size
    onnx.save(model, path)
    return WatchedGraph(path)


def test_an_open_graph_shows_its_axes_by_their_sizes(tmp_path: Path) -> None:
    layouts = find_layouts(graph_at(tmp_path / "m.onnx"), list(EXPECTED), mask_name="attention_mask")
    assert {name: layout.axes for name, layout in layouts.items()} == EXPECTED
    assert all(layout.batched for layout in layouts.values())


@pytest.mark.parametrize("length", [HEAD, 9])
@pytest.mark.parametrize("batch", [None, 3])
@pytest.mark.parametrize("softmax", ["vanilla", "folded"])
def test_a_static_length_may_equal_the_width_of_a_head(
    tmp_path: Path, length: int, batch: int | None, softmax: str
) -> None:
    graph = graph_at(tmp_path / "m.onnx", batch=batch, length=length, softmax=softmax)
    layouts = find_layouts(graph, list(EXPECTED), mask_name="attention_mask")
    assert {name: layout.axes for name, layout in layouts.items()} == EXPECTED


def test_every_observed_tensor_of_a_gated_graph_has_a_layout(tmp_path: Path) -> None:
    graph = graph_at(tmp_path / "m.onnx", gate="linear", num_layers=2)
    names = [tensor.name for tensor in observed_tensors(graph.outline())]
    layouts = find_layouts(graph, names, mask_name="attention_mask")
    assert all(layout.token_axes for layout in layouts.values())


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ([(2, 5, 8), (3, 7, 8)], TensorLayout(batched=True, axes=(None, 8))),
        ([(10, 8), (21, 8)], TensorLayout(batched=True, axes=(None, 8))),
        ([(8, 5, 4), (12, 7, 4)], TensorLayout(batched=True, axes=(4, None, 4))),
        ([(2, 8), (3, 8)], TensorLayout(batched=True, axes=(8,))),
        ([(2,), (3,)], TensorLayout(batched=True, axes=())),
        ([(1, 5, 8), (1, 7, 8)], TensorLayout(batched=False, axes=(1, None, 8))),
        ([(5, 8), (7, 8)], TensorLayout(batched=False, axes=(None, 8))),
        ([(6, 8), (6, 8)], TensorLayout(batched=False, axes=(6, 8))),
        ([(2, 6, 8), (3, 8, 8)], TensorLayout(batched=True, axes=(None, 8), stored=(1,))),
        ([(1, 2, 4, 5, 8), (1, 3, 4, 7, 8)], TensorLayout(batched=True, axes=(4, None, 8), leading=1)),
        ([(1, 1, 2, 17), (1, 1, 3, 17)], TensorLayout(batched=True, axes=(17,), leading=2)),
        ([(1, 1, 5, 5), (1, 1, 7, 7)], TensorLayout(batched=False, axes=(1, 1, None, None))),
    ],
)
def test_merged_and_missing_batch_axes_are_understood(shapes: list[tuple[int, ...]], expected: TensorLayout) -> None:
    assert layout_from_shapes("t", shapes, RUNS) == expected


def test_a_size_that_follows_nothing_is_an_error_that_names_the_tensor() -> None:
    with pytest.raises(ValueError, match=r"cannot tell which axes of tensor 't' hold tokens: its shape is \(2, 6\)"):
        layout_from_shapes("t", [(2, 6), (3, 9)], RUNS)


@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        (TensorLayout(batched=True, axes=(None, 8)), (2, 5, 8)),
        (TensorLayout(batched=True, axes=(None, 8)), (10, 8)),
        (TensorLayout(batched=True, axes=(3, None, None)), (2, 3, 5, 5)),
        (TensorLayout(batched=True, axes=(3, None, None)), (6, 5, 5)),
        (TensorLayout(batched=True, axes=(4, None)), (2, 4, 5)),
        (TensorLayout(batched=True, axes=(4, None), leading=1), (1, 2, 4, 5)),
    ],
)
@pytest.mark.parametrize(
    "mask", [[[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], [[0, 0, 1, 1, 1], [1, 0, 1, 0, 0]], [[0] * 5, [1] * 5], [[1] * 5] * 2]
)
def test_real_parts_are_what_boolean_selection_gives(
    layout: TensorLayout, shape: tuple[int, ...], mask: list[list[int]]
) -> None:
    mask_BT = np.array(mask, dtype=bool)
    array = np.random.default_rng(0).normal(size=shape)
    rows = array.reshape(2, *(5 if size is None else size for size in layout.axes))
    expected = []
    for row in range(2):
        selected = rows[row]
        for axis in layout.token_axes:
            selected = np.compress(mask_BT[row], selected, axis=axis)
        expected.append(selected.ravel())
    found = np.concatenate([part.ravel() for part in real_parts(array, mask_BT, layout)])
    assert np.array_equal(np.sort(found), np.sort(np.concatenate(expected)))


def test_a_tensor_without_rows_is_real_where_any_row_is() -> None:
    layout = TensorLayout(batched=False, axes=(1, None))
    mask_BT = np.array([[1, 0, 0], [1, 1, 0]], dtype=bool)
    assert np.concatenate(
        [part.ravel() for part in real_parts(np.array([[1.0, 2.0, 3.0]]), mask_BT, layout)]
    ).tolist() == [1, 2]


def test_inputs_that_leave_more_open_than_batch_and_length_are_refused(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20]> g (float[B,3,Y,X] pixels) => (float[B,3,Y,X] out) { out = Relu(pixels) }'
    )
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(ValueError, match=r"input 'pixels' of .* leaves more open than batch and length"):
        find_layouts(WatchedGraph(tmp_path / "m.onnx"), ["out"], mask_name="attention_mask")
