"""Shapes in trtexec's syntax."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.graphs.shapes import check_profile, format_shapes, parse_shapes

OPEN: dict[str, tuple[int | str, ...]] = {"input_ids": ("batch", "length"), "attention_mask": ("batch", "length")}
IMAGES: dict[str, tuple[int | str, ...]] = {"pixel_values": ("batch", 3, 224, 224)}
GRAPH: dict[str, tuple[int | str, ...]] = {"input_ids": ("batch", 128)}


@given(
    st.dictionaries(
        st.sampled_from(["a", "b.c", "d:e"]), st.lists(st.integers(1, 4096), min_size=1, max_size=4), min_size=1
    )
)
def test_what_is_formatted_is_parsed_back(shapes: dict[str, list[int]]) -> None:
    graph = {name: ["free"] * len(sizes) for name, sizes in shapes.items()}
    assert parse_shapes(format_shapes(shapes), graph) == {name: tuple(sizes) for name, sizes in shapes.items()}


def test_one_shape_stands_for_all_inputs() -> None:
    assert parse_shapes("4x128", OPEN) == {"input_ids": (4, 128), "attention_mask": (4, 128)}


@pytest.mark.parametrize("text", ["8", "8x3x224x224", "pixel_values:8", "pixel_values:8x3x224x224"])
def test_sizes_that_the_graph_fixes_may_be_left_out(text: str) -> None:
    assert parse_shapes(text, IMAGES) == {"pixel_values": (8, 3, 224, 224)}


def test_free_sizes_are_never_made_up() -> None:
    assert parse_shapes("4", OPEN) == {"input_ids": (4,), "attention_mask": (4,)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1x", "'1x' in '1x' is no shape; expected positive sizes such as 1x128"),
        ("0x8", "is no shape"),
        ("-1x8", "is no shape"),
        ("", "is no shape"),
        ("input_ids:1x8", "input 'attention_mask' has no shape"),
        ("input_ids:1x8,mask:1x8", "unknown input 'mask' in .*; the graph takes input_ids, attention_mask"),
        ("input_ids:1x8,1x8", "'1x8' in .* has no input name"),
        ("input_ids:1x8,input_ids:1x8", "input 'input_ids' has two shapes"),
    ],
)
def test_other_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_shapes(text, OPEN)


@pytest.mark.parametrize(
    ("low", "mid", "high", "message"),
    [
        ("2x128", "1x128", "4x128", "shapes of input 'input_ids' are out of order: 2, 1, 4"),
        ("1x64", "1x128", "4x128", r"shape 1x64 does not fit input 'input_ids', which has fixed sizes \[128\]"),
        ("1x128x1", "1x128", "4x128", "shape 1x128x1 does not fit"),
    ],
)
def test_a_range_that_does_not_fit_the_graph_is_refused(low: str, mid: str, high: str, message: str) -> None:
    smallest, usual, largest = (parse_shapes(text, GRAPH) for text in (low, mid, high))
    with pytest.raises(ValueError, match=message):
        check_profile(GRAPH, smallest=smallest, usual=usual, largest=largest)
    with pytest.raises(ValueError, match="input 'input_ids' is not in both"):
        check_profile(GRAPH, smallest={"x": (1, 128)}, usual=usual, largest=largest)
