"""Tokenizers from files and from texts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from deploy.data.encoding import TextEncoder
from deploy.data.tokenizer_folder import encode_stream, read_tokenizer
from deploy.data.tokenizer_training import train_tokenizer, trained_size
from deploy.tasks.mlm import masking_tokens

SHARED = Path(__file__).parents[4] / "shared" / "data" / "tokenizers"
TEXTS = [f"The quick brown fox number {number} jumps over the lazy dog." for number in range(200)]


def test_byte_level_bpe_begins_every_text_with_its_end_of_text_token_and_gets_a_padding_token(tmp_path: Path) -> None:
    vocabulary = {"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n", encoding="utf-8")
    tokenizer = read_tokenizer(tmp_path)
    assert list(encode_stream(tokenizer, iter(["abb", "a"]))) == [[3, 2, 1], [3, 0]]
    assert tokenizer.token_to_id("<|pad|>") == 4


def test_word_pieces_are_lower_cased_unless_the_folder_says_otherwise(tmp_path: Path) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "fox", "##es", "Fox"]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    assert read_tokenizer(tmp_path).encode("Foxes").tokens == ["[CLS]", "fox", "##es", "[SEP]"]
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}', encoding="utf-8")
    assert read_tokenizer(tmp_path).encode("Foxes").tokens == ["[CLS]", "Fox", "##es", "[SEP]"]


@pytest.mark.skipif(not SHARED.is_dir(), reason="no ../shared/data/tokenizers beside the checkout")
def test_the_word_piece_vocabulary_reads_as_its_tokenizer_file_does(tmp_path: Path) -> None:
    folder = SHARED / "bert-base-uncased-wordpiece"
    (tmp_path / "vocab.txt").write_bytes((folder / "vocab.txt").read_bytes())
    from_vocabulary, from_file = read_tokenizer(tmp_path), read_tokenizer(folder)
    for text in [*TEXTS[:3], "Müller's naïve 3.5-GHz CPU, 東京!", ""]:
        assert from_vocabulary.encode(text).ids == from_file.encode(text).ids


@pytest.mark.skipif(not SHARED.is_dir(), reason="no ../shared/data/tokenizers beside the checkout")
def test_gpt2_reads_back_every_text() -> None:
    tokenizer = read_tokenizer(SHARED / "gpt2-bpe")
    text = "Müller's naïve 3.5-GHz CPU, 東京!\n"
    ids = tokenizer.encode(text).ids
    assert ids[0] == 50256
    assert tokenizer.decode(ids) == text
    assert tokenizer.get_vocab_size() == 50258


def test_a_tokenizer_made_twice_from_the_same_texts_is_the_same() -> None:
    one, other = (train_tokenizer(iter(TEXTS), vocab_size=400, use="masked") for _ in range(2))
    assert one.to_str() == other.to_str()
    assert one.get_vocab_size() <= 400


def test_a_made_tokenizer_serves_the_rest_of_the_pipeline(tmp_path: Path) -> None:
    for use, first in (("masked", "[CLS]"), ("causal", "<|endoftext|>")):
        tokenizer = train_tokenizer(TEXTS, vocab_size=400, use=use)  # type: ignore[arg-type]
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        stored = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
        assert stored.encode("the lazy dog").tokens[0] == first
        encoder = TextEncoder(tmp_path / "tokenizer.json", max_length=8)
        rows = encoder.encode(["the lazy dog", "a"])
        assert encoder.feeds(rows)["attention_mask"].sum() == sum(len(row) for row in rows)
    train_tokenizer(TEXTS, vocab_size=400, use="masked").save(str(tmp_path / "tokenizer.json"))
    assert masking_tokens(tmp_path / "tokenizer.json").special == (0, 1, 2, 3, 4)


def test_folders_without_a_tokenizer_and_damaged_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"holds no tokenizer\.json, vocab\.json"):
        read_tokenizer(tmp_path)
    with pytest.raises(FileNotFoundError, match="no tokenizer folder at"):
        read_tokenizer(tmp_path / "absent")
    (tmp_path / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match="holds no tokenizer that can be read"):
        read_tokenizer(tmp_path)


def test_sizes_of_made_tokenizers() -> None:
    assert trained_size("bpe:4096") == 4096
    assert trained_size("some/folder") is None
    for wrong in ("bpe:", "bpe:many", "bpe:10"):
        with pytest.raises(ValueError, match="needs a size of at least 300"):
            trained_size(wrong)
