"""Packed windows: nothing lost, nothing twice, a function of seed and step."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.batches.token_windows import TokenWindows, pack_rows, spread_windows, token_dtype, tokens_sha256

ROWS = [list(range(start, start + 7)) for start in range(0, 700, 7)]


def test_packed_rows_follow_one_another_in_the_smallest_type() -> None:
    packed = pack_rows(iter(ROWS), vocab_size=700)
    assert packed.dtype == np.uint16
    np.testing.assert_array_equal(packed, np.arange(700))
    assert pack_rows(ROWS, vocab_size=70_000).dtype == np.int32


def test_packing_stops_at_the_limit_in_the_middle_of_a_text() -> None:
    np.testing.assert_array_equal(pack_rows(ROWS, vocab_size=700, limit=10), np.arange(10))


def test_packing_grows_beyond_its_first_capacity() -> None:
    rows = [np.arange(50_000) % 60_000, np.arange(150_000) % 60_000]
    packed = pack_rows(rows, vocab_size=60_000)
    np.testing.assert_array_equal(packed, np.concatenate(rows))


def test_ids_beyond_the_vocabulary_are_refused_with_the_text_that_has_them() -> None:
    with pytest.raises(ValueError, match="text 1 has token ids 3 to 9; the vocabulary has 9"):
        pack_rows([[1, 2], [3, 9]], vocab_size=9)


@given(num_tokens=st.integers(40, 400), length=st.integers(1, 7), batch_size=st.integers(1, 4), epoch=st.integers(0, 2))
def test_an_epoch_takes_disjoint_windows_of_consecutive_tokens(
    num_tokens: int, length: int, batch_size: int, epoch: int
) -> None:
    source = TokenWindows(np.arange(num_tokens, dtype=np.uint16), length=length, batch_size=batch_size, seed=1)
    steps = range(epoch * source.batches_per_epoch, (epoch + 1) * source.batches_per_epoch)
    rows = np.concatenate([source.rows(step) for step in steps])
    assert len(np.unique(rows)) == rows.size, "a token came twice"
    np.testing.assert_array_equal(rows - rows[:, :1], np.tile(np.arange(length), (len(rows), 1)))
    left_over = num_tokens - rows.size
    assert left_over < (batch_size + 2) * length


def test_parts_of_a_batch_are_the_batch_and_epochs_differ() -> None:
    source = TokenWindows(np.arange(1000, dtype=np.uint16), length=8, batch_size=6, seed=3)
    whole = source.batch(4)["input_ids"]
    for part in range(3):
        assert np.array_equal(source.batch(4, part=part, num_parts=3)["input_ids"], whole[part::3])
    first, second = source.rows(0), source.rows(source.batches_per_epoch)
    assert not np.array_equal(first, second)
    again = TokenWindows(np.arange(1000, dtype=np.uint16), length=8, batch_size=6, seed=3)
    np.testing.assert_array_equal(again.rows(source.batches_per_epoch), second)


def test_spread_windows_reach_from_the_first_token_to_the_last() -> None:
    windows = spread_windows(np.arange(100, dtype=np.uint16), length=10, count=4)
    assert windows.dtype == np.int64
    np.testing.assert_array_equal(windows[:, 0], [0, 30, 60, 90])
    assert windows[-1, -1] == 99


def test_the_hash_does_not_depend_on_the_type_that_holds_the_ids() -> None:
    ids = np.arange(500)
    assert tokens_sha256(ids.astype(np.uint16)) == tokens_sha256(ids.astype(np.int32))
    assert tokens_sha256(ids.astype(np.uint16)) != tokens_sha256(ids[1:].astype(np.uint16))
    assert token_dtype(1 << 16) is np.uint16


def test_too_few_tokens_are_refused_with_what_is_needed() -> None:
    with pytest.raises(ValueError, match="make 30 tokens; 4 windows of 8 need 39"):
        TokenWindows(np.arange(30, dtype=np.uint16), length=8, batch_size=4, seed=0)
