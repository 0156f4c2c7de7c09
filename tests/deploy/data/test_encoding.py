"""Texts become ids and feeds, whatever truncation and padding the tokenizer file asks for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from deploy.data.encoding import TextEncoder
from deploy.files import sha256_file
from tests.deploy.word_tokenizer import CLS, FIRST_WORD, PAD, SEP, write_tokenizer


@pytest.fixture
def tokenizer_file(tmp_path: Path) -> Path:
    return write_tokenizer(tmp_path / "tokenizer.json")


def test_own_truncation_and_padding_of_the_file_are_switched_off(tokenizer_file: Path) -> None:
    (short, long) = TextEncoder(tokenizer_file, max_length=20).encode(["w0", "w0 w1 w2 w3 w4 w5"])
    assert short.tolist() == [CLS, FIRST_WORD, SEP]
    assert long.tolist() == [CLS, *range(FIRST_WORD, FIRST_WORD + 6), SEP]
    assert long.dtype == np.int64


def test_a_cut_row_keeps_its_closing_token(tokenizer_file: Path) -> None:
    (row,) = TextEncoder(tokenizer_file, max_length=5).encode(["w0 w1 w2 w3 w4 w5"])
    assert row.tolist() == [CLS, FIRST_WORD, FIRST_WORD + 1, FIRST_WORD + 2, SEP]


def test_an_empty_text_is_its_special_tokens(tokenizer_file: Path) -> None:
    (row,) = TextEncoder(tokenizer_file, max_length=5).encode([""])
    assert row.tolist() == [CLS, SEP]


def test_feeds_pad_behind_the_tokens_to_the_longest_row_or_a_length(tokenizer_file: Path) -> None:
    encoder = TextEncoder(tokenizer_file, max_length=20)
    rows = encoder.encode(["w0", "w0 w1 w2"])
    feeds = encoder.feeds(rows)
    assert feeds["input_ids"].tolist() == [[CLS, 4, SEP, PAD, PAD], [CLS, 4, 5, 6, SEP]]
    assert feeds["attention_mask"].tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]
    assert not feeds["token_type_ids"].any()
    assert {str(array.dtype) for array in feeds.values()} == {"int64"}
    longer = encoder.feeds(rows, length=9, input_names=["attention_mask", "input_ids"])
    assert list(longer) == ["attention_mask", "input_ids"]
    assert longer["input_ids"].shape == (2, 9)


def test_the_pad_id_comes_from_the_file_its_vocabulary_or_the_caller(tmp_path: Path, tokenizer_file: Path) -> None:
    assert TextEncoder(tokenizer_file, max_length=9).pad_token_id == PAD
    assert TextEncoder(tokenizer_file, max_length=9, pad_token_id=7).pad_token_id == 7
    nameless = write_tokenizer(tmp_path / "other.json", pads=False)
    with pytest.raises(ValueError, match="names no padding token; pass pad_token_id"):
        TextEncoder(nameless, max_length=9)
    assert TextEncoder(nameless, max_length=9, pad_token_id=0).tokenizer_sha256 == sha256_file(nameless)


def test_what_cannot_be_fed_is_refused(tokenizer_file: Path) -> None:
    encoder = TextEncoder(tokenizer_file, max_length=9)
    rows = encoder.encode(["w0 w1"])
    with pytest.raises(ValueError, match="a row has 4 tokens; the length is 3"):
        encoder.feeds(rows, length=3)
    with pytest.raises(ValueError, match="cannot make input 'pixel_values' from text"):
        encoder.feeds(rows, input_names=["pixel_values"])
    with pytest.raises(ValueError, match="no rows"):
        encoder.feeds([])


def test_what_is_no_tokenizer_is_refused(tmp_path: Path, tokenizer_file: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no tokenizer at"):
        TextEncoder(tmp_path / "absent.json", max_length=9)
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(ValueError, match=r"broken\.json is not a tokenizer\.json"):
        TextEncoder(tmp_path / "broken.json", max_length=9)
    with pytest.raises(ValueError, match=r"max_length is 2; tokenizer\.json adds 2 special tokens"):
        TextEncoder(tokenizer_file, max_length=2)


def test_a_document_is_encoded_whole_and_without_special_tokens(tokenizer_file: Path) -> None:
    encoder = TextEncoder(tokenizer_file, max_length=6)
    assert encoder.encode_document("w0 w5 " * 5).tolist() == [FIRST_WORD, FIRST_WORD + 5] * 5
    assert len(encoder.encode(["w0 w5 " * 5])[0]) == 6
