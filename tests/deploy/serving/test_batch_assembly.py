from __future__ import annotations

import numpy as np
import pytest

from deploy.serving.batch_assembly import LENGTHS, join, padded_length, split


@pytest.mark.parametrize(
    ("length", "longest", "expected"), [(1, 512, 8), (8, 512, 8), (9, 512, 16), (130, 512, 192), (500, 510, 510)]
)
def test_lengths_are_padded_to_few_and_never_beyond_the_model(length: int, longest: int, expected: int) -> None:
    assert padded_length(length, longest) == expected


def test_a_length_above_the_last_step_stays() -> None:
    assert padded_length(LENGTHS[-1] + 1, 1 << 30) == LENGTHS[-1] + 1


def test_rows_are_joined_behind_each_other_with_the_fill_behind_their_tokens() -> None:
    parts = [{"ids": np.array([[5, 6]]), "mask": np.array([[1, 1]])}, {"ids": np.array([[7]]), "mask": np.array([[1]])}]
    joined = join(parts, length=4, fills={"ids": 9})
    assert joined["ids"].tolist() == [[5, 6, 9, 9], [7, 9, 9, 9]]
    assert joined["mask"].tolist() == [[1, 1, 0, 0], [1, 0, 0, 0]]


def test_one_request_that_needs_no_padding_is_not_copied() -> None:
    raw = np.frombuffer(np.arange(6).tobytes(), np.int64).reshape(2, 3)
    for length in (None, 3):
        assert join([{"ids": raw}], length=length, fills={})["ids"] is raw


def test_each_request_gets_its_rows_and_only_its_length_of_outputs_that_have_one() -> None:
    outputs = {"tokens": np.arange(12).reshape(3, 4), "pooled": np.arange(6).reshape(3, 2)}
    first, second = split(outputs, [1, 2], [2, 3], {"tokens": 1})
    assert first["tokens"].tolist() == [[0, 1]]
    assert second["tokens"].tolist() == [[4, 5, 6], [8, 9, 10]]
    assert second["pooled"].tolist() == [[2, 3], [4, 5]]
