"""What is sent, by what the model takes; and what cannot be made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deploy.load.client import ModelFacts, split_url
from deploy.load.requests import make_requests
from tests.deploy.word_tokenizer import CLS, SEP, write_tokenizer

TOKENS = ModelFacts(
    name="m", max_batch_size=8, inputs={"input_ids": "INT64", "attention_mask": "INT64"}
)  # fmt: skip
TEXTS = ModelFacts(name="m-text", inputs={"TEXT": "BYTES"}, max_batch_size=8)
USUAL: dict[str, Any] = {
    "rows": 2, "count": 3, "texts": None, "tokenizer": None, "length": None, "vocabulary": 50, "seed": 0
}  # fmt: skip


def test_texts_go_as_they_are_to_a_model_of_texts_and_as_tokens_to_a_model_of_tokens(tmp_path: Path) -> None:
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json")
    given = USUAL | {"texts": ["w0 w1", "w2", "w3"], "tokenizer": tokenizer}
    texts = make_requests(TEXTS, **given)
    assert [[row[0] for row in each["TEXT"]] for each in texts.arrays] == [
        [b"w0 w1", b"w2"],
        [b"w3", b"w0 w1"],
        [b"w2", b"w3"],
    ]
    tokens = make_requests(TOKENS, **given)
    assert tokens.arrays[0]["input_ids"].tolist() == [[CLS, 4, 5, SEP], [CLS, 6, SEP, 0]]
    assert tokens.arrays[0]["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
    assert make_requests(TOKENS, **given | {"length": 9}).arrays[0]["input_ids"].shape == (2, 9)


def test_generated_ids_say_that_they_are() -> None:
    made = make_requests(TOKENS, **USUAL | {"length": 7})
    assert "generated ids below 50" in made.what
    ids = np.concatenate([each["input_ids"] for each in made.arrays])
    assert (ids.shape, ids.min() >= 1, ids.max() < 50) == ((6, 7), True, True)
    assert all((each["attention_mask"] == 1).all() for each in made.arrays)


@pytest.mark.parametrize(
    ("model", "choices", "message"),
    [
        (TEXTS, {}, "takes texts; name a file of them with --data"),
        (TOKENS, {"texts": ["w0"]}, "--tokenizer"),
        (TOKENS, {"rows": 9}, "above the 8"),
        (TOKENS, {"texts": []}, "no texts"),
        (ModelFacts(name="m", inputs={"pixels": "FP32"}, max_batch_size=0), {},
         "'pixels' of 'm' cannot be made"),
        (ModelFacts(name="m", inputs={"input_ids": "FP32"}, max_batch_size=0), {},
         "not of integers"),
    ],
)  # fmt: skip
def test_what_cannot_be_made_is_refused(model: ModelFacts, choices: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_requests(model, **USUAL | choices)


def test_an_address_names_its_protocol() -> None:
    assert split_url("localhost:8000") == ("http", "localhost:8000")
    assert split_url("grpc://localhost:8001") == ("grpc", "localhost:8001")
    for wrong in ("https://x:1", "localhost", "http://x:1/v2/models", "http://x:y"):
        with pytest.raises(ValueError, match=r"no address|Port"):
            split_url(wrong)
