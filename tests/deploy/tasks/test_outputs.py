"""Outputs of any graph against the float graph's, in dB."""

from __future__ import annotations

import numpy as np
import pytest

from deploy.tasks.outputs import outputs_task
from deploy.tasks.task import Feeds

BATCHES: list[Feeds] = [{"x": np.arange(6.0).reshape(2, 3)}, {"x": np.ones((1, 3))}]


def twice(feeds: Feeds) -> dict[str, np.ndarray]:
    return {"y": feeds["x"] * 2, "z": feeds["x"][:, 0] + 10, "count": np.array([1, 2])}


def test_the_score_is_the_lowest_signal_to_noise_ratio_of_the_outputs() -> None:
    task = outputs_task(BATCHES, twice)
    assert task.num_examples == 3
    result = task.evaluate(lambda feeds: {"y": feeds["x"] * 2 + 0.1, "z": feeds["x"][:, 0] + 10})
    signal = 4 * (np.square(BATCHES[0]["x"]).sum() + 3)
    assert result.score == pytest.approx(10 * np.log10(signal / (9 * 0.01)))
    assert result.details["relative_error"] == pytest.approx(np.sqrt(9 * 0.01 / signal))
    assert result.details["max_abs_difference"] == pytest.approx(0.1)


def test_equal_outputs_are_exact_and_get_no_invented_number() -> None:
    assert outputs_task(BATCHES, twice).evaluate(twice).score == np.inf


def test_what_cannot_be_compared_is_named() -> None:
    task = outputs_task(BATCHES, twice)
    with pytest.raises(ValueError, match="no output 'z'; it has y"):
        task.evaluate(lambda feeds: {"y": feeds["x"]})
    with pytest.raises(ValueError, match="output 'y' has 2 non-finite values"):
        task.evaluate(lambda feeds: twice(feeds) | {"y": np.where(feeds["x"] > 3, np.nan, feeds["x"])})
    with pytest.raises(ValueError, match="output 'y' of the float graph is not finite"):
        outputs_task(BATCHES, lambda feeds: {"y": np.full_like(feeds["x"], np.inf)})
    with pytest.raises(ValueError, match="no float output"):
        outputs_task(BATCHES, lambda _: {"count": np.array([1])})
    with pytest.raises(ValueError, match="no batch"):
        outputs_task([], twice)
