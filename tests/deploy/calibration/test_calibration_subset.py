"""The draw of calibration texts depends on seed and sizes alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from deploy.calibration.calibration_subset import calibration_batches, preprocessing_identity, random_batches
from deploy.data.encoding import TextEncoder
from tests.deploy.word_tokenizer import write_tokenizer

TEXTS = [f"w{number % 40} w{number // 40}" for number in range(100)]


@pytest.fixture
def encoder(tmp_path: Path) -> TextEncoder:
    return TextEncoder(write_tokenizer(tmp_path / "tokenizer.json"), max_length=8)


def test_the_same_seed_draws_the_same_texts_without_repetition(encoder: TextEncoder) -> None:
    one, indices = calibration_batches(TEXTS, encoder, batches=4, batch_size=5, seed=3)
    two, again = calibration_batches(TEXTS, encoder, batches=4, batch_size=5, seed=3)
    assert indices == again
    assert len(set(indices)) == 20
    assert all(np.array_equal(a["input_ids"], b["input_ids"]) for a, b in zip(one, two, strict=True))
    assert calibration_batches(TEXTS, encoder, batches=4, batch_size=5, seed=4)[1] != indices


def test_rows_are_in_the_order_of_the_indices(encoder: TextEncoder) -> None:
    batches, indices = calibration_batches(TEXTS, encoder, batches=2, batch_size=3, seed=0, length=6)
    rows = [row for batch in batches for row in batch["input_ids"]]
    assert [batch["input_ids"].shape for batch in batches] == [(3, 6)] * 2
    for row, index in zip(rows, indices, strict=True):
        (ids,) = encoder.encode([TEXTS[index]])
        assert row[: len(ids)].tolist() == ids.tolist()


def test_texts_are_encoded_batch_by_batch_when_they_are_read(
    encoder: TextEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[int] = []
    encode = TextEncoder.encode

    def counting(self: TextEncoder, texts: list[str]) -> list[np.ndarray]:
        encoded.append(len(texts))
        return encode(self, texts)

    monkeypatch.setattr(TextEncoder, "encode", counting)
    batches, _ = calibration_batches(TEXTS, encoder, batches=4, batch_size=5, seed=3)
    assert (len(batches), encoded) == (4, [])
    last, first = batches[-1], batches[0]
    assert encoded == [5, 5]
    assert [np.array_equal(last["input_ids"], batch["input_ids"]) for batch in batches[2:]] == [False, True]
    assert first["input_ids"].shape[0] == 5
    with pytest.raises(IndexError):
        batches[4]


def test_too_few_texts_are_refused_with_the_numbers(encoder: TextEncoder) -> None:
    with pytest.raises(ValueError, match="100 texts; 16 batches of 16 need 256"):
        calibration_batches(TEXTS, encoder, seed=0)
    with pytest.raises(ValueError, match="expected at least 1 of each"):
        calibration_batches(TEXTS, encoder, batches=0, seed=0)


def test_preprocessing_names_tokenizer_length_and_padding(encoder: TextEncoder) -> None:
    assert preprocessing_identity(encoder)["padding"] == "longest row"
    fixed = preprocessing_identity(encoder, length=8)
    assert (fixed["padding"], fixed["max_length"], fixed["tokenizer_sha256"]) == (
        "to 8 tokens",
        8,
        encoder.tokenizer_sha256,
    )


def test_random_batches_are_ids_of_the_vocabulary_and_deterministic() -> None:
    one, two = (random_batches(vocab_size=9, length=5, batches=2, batch_size=3, seed=1) for _ in range(2))
    assert np.array_equal(one[1]["input_ids"], two[1]["input_ids"])
    assert one[0]["input_ids"].shape == (3, 5)
    assert 0 <= one[0]["input_ids"].min() <= one[0]["input_ids"].max() < 9
    with pytest.raises(ValueError, match="cannot make input 'pixel_values'"):
        random_batches(vocab_size=9, length=5, seed=1, input_names=["pixel_values"])
