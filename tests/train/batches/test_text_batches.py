"""Padded batches as a function of seed and step."""

import numpy as np
import pytest
import torch

from train.batches.text_batches import Batch, TextBatches, TokenRow, pad_rows, rows_sha256, sequential_batches


def _rows(count: int, *, seed: int = 0, longest: int = 60) -> list[TokenRow]:
    generator = np.random.default_rng(seed)
    return [generator.integers(1, 1000, size=generator.integers(3, longest)) for _ in range(count)]


def _unpadded(batch: Batch) -> list[list[int]]:
    pairs = zip(batch["input_ids"], batch["attention_mask"], strict=True)
    return [ids[mask.bool()].tolist() for ids, mask in pairs]


def test_rows_are_padded_on_the_right_and_masked() -> None:
    batch = pad_rows([np.array([5, 6, 7]), np.array([8])], pad_id=9)
    assert batch["input_ids"].tolist() == [[5, 6, 7], [8, 9, 9]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["input_ids"].dtype == torch.int64


def test_an_epoch_has_each_row_at_most_once_and_leaves_out_less_than_a_batch() -> None:
    batches = TextBatches(_rows(1000), batch_size=16, pad_id=0, seed=1)
    seen = np.concatenate([batches.row_indices(step) for step in range(batches.batches_per_epoch)])
    assert len(seen) == len(set(seen.tolist())) == 992


def test_which_rows_an_epoch_leaves_out_does_not_depend_on_length() -> None:
    rows = [np.ones(length, dtype=np.int64) for length in range(1, 24)]
    batches = TextBatches(rows, batch_size=8, pad_id=0, seed=0)
    counts = np.zeros(len(rows))
    for step in range(2 * 400):
        counts[batches.row_indices(step)] += 1
    # 400 epochs of 16 out of 23 rows: 278 expected, standard deviation 9.2; five of them are allowed.
    assert np.abs(counts - 400 * 16 / 23).max() < 46


def test_batches_depend_on_seed_and_step_only() -> None:
    rows = _rows(300)
    first, again = (TextBatches(rows, batch_size=8, pad_id=0, seed=3) for _ in range(2))
    forwards = [first.row_indices(step).tolist() for step in range(90)]
    backwards = [again.row_indices(step).tolist() for step in reversed(range(90))][::-1]
    assert forwards == backwards
    other = TextBatches(rows, batch_size=8, pad_id=0, seed=4)
    assert forwards[0] != other.row_indices(0).tolist()
    assert forwards[:37] != forwards[37:74], "the second epoch repeats the first"


def test_rows_of_similar_length_share_a_batch() -> None:
    rows = _rows(2048)
    batches = TextBatches(rows, batch_size=16, pad_id=0, seed=0)
    positions = sum(batches.batch(step)["input_ids"].numel() for step in range(batches.batches_per_epoch))
    tokens = sum(len(row) for row in rows)
    assert positions < 1.05 * tokens  # random batches of these rows have about 1.8 positions for a token


def test_parts_share_out_the_rows_of_the_whole_batch() -> None:
    batches = TextBatches(_rows(64), batch_size=8, pad_id=0, seed=0)
    whole = batches.batch(5)
    parts = [batches.batch(5, part=part, num_parts=4) for part in range(4)]
    assert [part["input_ids"].shape[0] for part in parts] == [2, 2, 2, 2]
    assert sorted(row for part in parts for row in _unpadded(part)) == sorted(_unpadded(whole))


def test_sequential_batches_keep_every_row_in_order() -> None:
    rows = _rows(21)
    batches = sequential_batches(rows, batch_size=8, pad_id=0)
    assert [len(batch["input_ids"]) for batch in batches] == [8, 8, 5]
    assert batches[2]["input_ids"][4][: len(rows[20])].tolist() == rows[20].tolist()


def test_the_hash_of_rows_sees_ids_lengths_and_order() -> None:
    one = rows_sha256([np.array([1, 2]), np.array([3])])
    assert one == rows_sha256([np.array([1, 2], dtype=np.int32), np.array([3])])
    assert one != rows_sha256([np.array([1]), np.array([2, 3])])
    assert one != rows_sha256([np.array([3]), np.array([1, 2])])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "no training rows"),
        ([np.array([[1, 2]])], "row 0 has shape"),
        ([np.array([1]), np.array([], dtype=np.int64)], "row 1 has shape"),
        ([np.array([1.5])], "float64"),
        ([np.array([1])] * 3, "3 training rows do not fill a batch of 4"),
    ],
)
def test_unusable_rows_are_refused(rows: list[TokenRow], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TextBatches(rows, batch_size=4, pad_id=0, seed=0)
