"""A sample is drawn from all of the data, the same one every time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.data.example_draw import ExamplesUsed, draw


@given(st.integers(0, 60), st.integers(1, 60), st.integers(0, 5))
def test_a_sample_has_no_repetition_keeps_the_order_and_is_the_same_every_time(
    available: int, limit: int, seed: int
) -> None:
    data = [f"text {index}" for index in range(available)]
    drawn = draw(iter(data), limit=limit, seed=seed)
    assert len(drawn.examples) == min(available, limit)
    assert list(drawn.indices) == sorted(set(drawn.indices))
    assert drawn.examples == [data[index] for index in drawn.indices]
    assert drawn.available == available
    assert draw(data, limit=limit, seed=seed).indices == drawn.indices


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 5))
def test_a_larger_sample_holds_the_smaller_one(small: int, more: int, seed: int) -> None:
    data = range(60)
    assert set(draw(data, limit=small, seed=seed).indices) <= set(draw(data, limit=small + more, seed=seed).indices)


def test_every_place_of_an_ordered_file_is_equally_likely() -> None:
    hits = [0] * 20
    for seed in range(2000):
        for index in draw(range(20), limit=5, seed=seed).indices:
            hits[index] += 1
    assert all(420 < count < 580 for count in hits)  # 500 expected, standard deviation 19


def test_no_limit_takes_everything() -> None:
    assert draw(range(7), limit=None).used == ExamplesUsed(used=7, available=7, chosen="all")
    assert draw(range(7), limit=7).used.chosen == "all"
    assert draw(range(7), limit=3).used == ExamplesUsed(used=3, available=7, chosen="drawn", seed=0)


def test_memory_holds_the_sample_alone() -> None:
    alive = 0

    class Example:
        def __init__(self) -> None:
            nonlocal alive
            alive += 1

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    def stream() -> Iterator[Example]:
        for _ in range(1000):
            assert alive <= 5
            yield Example()

    assert len(draw(stream(), limit=4, seed=1).examples) == 4


def test_words_tell_how_examples_were_chosen() -> None:
    assert draw(range(1500), limit=300, seed=2).used.in_words() == "300 of 1,500, drawn at random, seed 2"
    assert draw(range(1500), limit=None).used.in_words() == "all 1,500"
    assert ExamplesUsed(used=8, available=40, chosen="first").in_words() == "8 of 40, the first ones"


@pytest.mark.parametrize(
    ("limit", "seed", "message"),
    [(0, 0, "limit is 0; expected at least 1"), (3, -1, "seed is -1; expected at least 0")],
)
def test_a_limit_or_a_seed_that_is_none_is_refused(limit: int, seed: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw(range(5), limit=limit, seed=seed)
