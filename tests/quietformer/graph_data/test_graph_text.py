from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from quietformer.graph_data.graph_text import USUAL_LENGTH, graph_text
from tests.deploy.encoder_graph import MAX_T, V
from tests.deploy.graphs.test_float16 import both
from tests.deploy.word_tokenizer import FIRST_WORD, write_tokenizer


@pytest.mark.parametrize(
    ("length", "positions", "expected"),
    [(None, MAX_T, f"1x{MAX_T}"), (16, MAX_T, "1x16"), (None, 512, f"1x{USUAL_LENGTH}"), (256, 512, "1x256")],
)
def test_the_usual_shape_is_one_that_the_graph_takes(
    tmp_path: Path, length: int | None, positions: int, expected: str
) -> None:
    graph, _, _ = both(tmp_path)
    write_tokenizer(tmp_path / "tokenizer.json", words=V - FIRST_WORD)
    text = graph_text(graph)
    assert replace(text, info=replace(text.info, length=length, max_length=positions)).usual_shape == expected
    assert text.full_batch(None, text.usual_shape)["input_ids"].shape == (1, MAX_T)
