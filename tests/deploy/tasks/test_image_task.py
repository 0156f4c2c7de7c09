"""Accuracy of image classifiers: right answers counted once, ties and batches without effect on it, bad data by name."""

from __future__ import annotations

import numpy as np
import pytest

from deploy.data.image_data import LabelledImage
from deploy.tasks.image import ImageTask, image_task
from deploy.tasks.task import Feeds

K = 7


class NumberEncoder:
    """The "encoded image" is the number of a row of logits."""

    def feeds(self, images: object, /) -> Feeds:
        assert isinstance(images, tuple)
        return {"pixel_values": np.array([[int(image.source)] for image in images], dtype=np.float32)}


def _images(labels: list[int]) -> list[LabelledImage]:
    return [
        LabelledImage(where=f"row {row}", source=str(row).encode(), label=label) for row, label in enumerate(labels)
    ]


def _task(labels: list[int], *, batch_size: int = 4, names: tuple[str, ...] = ()) -> ImageTask:
    return image_task(_images(labels), NumberEncoder(), labels=names, batch_size=batch_size)


def _model(logits_NK: np.ndarray, name: str = "logits") -> object:
    return lambda feeds: {name: logits_NK[feeds["pixel_values"][:, 0].astype(int)]}


@pytest.mark.parametrize("batch_size", [1, 4, 100])
def test_accuracy_top_five_and_loss_are_those_of_their_definitions(batch_size: int) -> None:
    generator = np.random.default_rng(0)
    logits_NK = generator.standard_normal((30, K)).astype(np.float32)
    labels = generator.integers(0, K, 30)
    result = _task(labels.tolist(), batch_size=batch_size).evaluate(_model(logits_NK))  # type: ignore[arg-type]
    probabilities = np.exp(logits_NK.astype(np.float64))
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    five = np.argsort(-logits_NK, axis=1)[:, :5]
    assert result.score == np.mean(logits_NK.argmax(axis=1) == labels)
    assert result.details["top5"] == np.mean([label in row for label, row in zip(labels, five, strict=True)])
    assert result.details["loss"] == pytest.approx(-np.log(probabilities[np.arange(30), labels]).mean())


def test_equal_logits_count_for_the_first_class_alone() -> None:
    result = _task([0, 1, 2, 3, 4, 5, 6]).evaluate(_model(np.zeros((K, K), np.float32)))  # type: ignore[arg-type]
    assert result.score == pytest.approx(1 / K)
    assert result.details["top5"] == pytest.approx(5 / K)


def test_five_classes_have_no_top_five() -> None:
    assert set(_task([0, 4]).evaluate(_model(np.eye(5, dtype=np.float32))).details) == {"loss"}  # type: ignore[arg-type]


def test_what_cannot_be_judged_is_named() -> None:
    with pytest.raises(ValueError, match="no images to classify"):
        _task([])
    with pytest.raises(ValueError, match="row 1 is of class 2; the model has classes 0 to 1"):
        _task([0, 2], names=("cat", "dog"))
    with pytest.raises(ValueError, match="row 0 is of class 3; the model has classes 0 to 2"):
        _task([3]).evaluate(_model(np.zeros((1, 3), np.float32)))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="row 0 has no label"):
        image_task([LabelledImage(where="row 0", source=b"0", label=None)], NumberEncoder())
    with pytest.raises(ValueError, match="no output 'logits'; it has hidden"):
        _task([0]).evaluate(_model(np.zeros((1, 3), np.float32), "hidden"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="logits of row 1 are not finite"):
        _task([0, 0]).evaluate(_model(np.array([[0.0, 1.0], [np.nan, 0.0]])))  # type: ignore[arg-type]
