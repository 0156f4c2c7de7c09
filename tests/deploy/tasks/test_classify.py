"""Accuracy of text classifiers."""

from __future__ import annotations

import numpy as np
import pytest

from deploy.data.text_data import LabelledText
from deploy.tasks.classify import classify_task

NAMES = ("input_ids", "attention_mask")


class _Letters:
    """One token a letter."""

    def encode(self, texts: list[str], /) -> list[np.ndarray]:
        return [np.array([ord(letter) - 96 for letter in text], dtype=np.int64) for text in texts]

    def feeds(
        self, token_rows: list[np.ndarray], /, *, length: int | None, input_names: tuple[str, ...]
    ) -> dict[str, np.ndarray]:
        longest = max(len(row) for row in token_rows)
        ids = np.zeros((len(token_rows), longest), dtype=np.int64)
        for index, row in enumerate(token_rows):
            ids[index, : len(row)] = row
        return {"input_ids": ids, "attention_mask": (ids > 0).astype(np.int64)}


def _by_length(feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Class 1 for texts of three letters and more, with a margin of 2."""
    is_long = feeds["attention_mask"].sum(1) >= 3
    return {"logits": np.where(is_long[:, None], [-1.0, 1.0], [1.0, -1.0])}


def test_accuracy_and_loss_are_those_of_the_labels_in_their_order() -> None:
    texts = [LabelledText(text=text, label=label) for text, label in (("abcd", 1), ("a", 0), ("abc", 0), ("ab", 0))]
    task = classify_task(texts, _Letters(), input_names=NAMES, batch_size=3)  # type: ignore[arg-type]
    result = task.evaluate(_by_length)
    assert result.score == 0.75
    right, wrong = np.log1p(np.exp(-2.0)), np.log1p(np.exp(2.0))
    assert result.details["loss"] == pytest.approx((3 * right + wrong) / 4)
    assert task.num_examples == 4


def test_outputs_that_cannot_be_judged_are_refused() -> None:
    task = classify_task([LabelledText(text="abc", label=2)], _Letters(), input_names=NAMES)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a text is of class 2; the model has 2 classes"):
        task.evaluate(_by_length)
    with pytest.raises(ValueError, match="no output 'logits'; it has last_hidden_state"):
        task.evaluate(lambda feeds: {"last_hidden_state": np.zeros((1, 3, 4))})
    with pytest.raises(ValueError, match="logits of text 0 are not finite"):
        task.evaluate(lambda feeds: {"logits": np.full((1, 3), np.nan)})
    with pytest.raises(ValueError, match="no texts to evaluate"):
        classify_task([], _Letters(), input_names=NAMES)  # type: ignore[arg-type]
