"""Cross-entropy with smoothing and mixed labels, Mixup and CutMix, against formulas written out."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from train.batches.image_batches import ImageBatches, LabelledPixels
from train.objectives.classification import Classification
from train.objectives.image_mixing import MixedImages


class _Logits(nn.Module):
    """Gives the logits it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, given: torch.Tensor) -> Any:
        return SimpleNamespace(logits=given * self.scale)


def _logits(rows: int, classes: int = 5, *, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(rows, classes)).astype(np.float32))


def _reference(logits_BK: np.ndarray, target_BK: np.ndarray) -> float:
    logits_BK = logits_BK.astype(np.float64)
    log_BK = logits_BK - np.log(np.exp(logits_BK).sum(1, keepdims=True))
    return float(-(target_BK * log_BK).sum(1).mean())


def test_the_loss_of_mixed_and_smoothed_labels_is_the_cross_entropy_with_their_distribution() -> None:
    logits_BK = _logits(4)
    labels, others = np.array([0, 1, 2, 3]), np.array([4, 1, 0, 2])
    share_B = np.array([0.3, 0.8, 1.0, 0.5])
    batch = {
        "given": logits_BK,
        "labels": torch.from_numpy(labels),
        "other_labels": torch.from_numpy(others),
        "label_share": torch.from_numpy(share_B.astype(np.float32)),
    }
    eye = np.eye(5)
    target_BK = share_B[:, None] * eye[labels] + (1 - share_B[:, None]) * eye[others]
    smoothed_BK = 0.9 * target_BK + 0.1 / 5
    loss = Classification(label_smoothing=0.1).loss(_Logits(), batch).loss
    assert loss.item() == pytest.approx(_reference(logits_BK.numpy(), smoothed_BK), rel=1e-6)


def test_figures_use_plain_labels_over_all_examples() -> None:
    model = _Logits()
    batches = [{"given": _logits(rows, seed=rows), "labels": torch.arange(rows) % 5} for rows in (3, 6)]
    with torch.no_grad():
        found = Classification(label_smoothing=0.3).figures(model, batches)
    logits = np.concatenate([batch["given"].numpy() for batch in batches])
    labels = np.concatenate([batch["labels"].numpy() for batch in batches])
    assert found.figures["loss"] == pytest.approx(_reference(logits, np.eye(5)[labels]), rel=1e-6)
    assert found.score == found.figures["top1"] == pytest.approx(np.mean(logits.argmax(1) == labels))


def _source(count: int = 12) -> ImageBatches:
    pixels = np.random.default_rng(0).integers(0, 256, size=(count, 8, 8, 3), dtype=np.uint8)
    images = LabelledPixels(pixels=pixels, labels=np.arange(count) % 4, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    return ImageBatches(images, batch_size=6, seed=0, crop_padding=1, flip=True)


@pytest.mark.parametrize("options", [{"mixup": 0.8}, {"cutmix": 1.0}, {"mixup": 0.8, "cutmix": 1.0}])
def test_mixed_images_are_their_two_images_in_the_shares_of_their_labels(options: dict[str, float]) -> None:
    source = _source()
    plain = source.batch(3)
    mixed = MixedImages(source, seed=5, **options).batch(3)
    for index in range(6):
        partners = [
            other
            for other in range(6)
            if plain["labels"][other] == mixed["other_labels"][index] and _is_mixture(mixed, plain, index, other)
        ]
        assert partners, f"image {index} is no mixture of two images of the batch"
    assert torch.equal(mixed["labels"], plain["labels"])
    assert ((mixed["label_share"] >= 0) & (mixed["label_share"] <= 1)).all()


def _is_mixture(mixed: dict[str, torch.Tensor], plain: dict[str, torch.Tensor], index: int, other: int) -> bool:
    image, one, two = mixed["pixel_values"][index], plain["pixel_values"][index], plain["pixel_values"][other]
    share = float(mixed["label_share"][index])
    blended = torch.allclose(image, share * one + (1 - share) * two, atol=1e-5)
    from_one, from_two = torch.isclose(image, one).all(0), torch.isclose(image, two).all(0)
    pasted = bool((from_one | from_two).all()) and abs(float((~from_two).float().mean()) - share) < 0.15
    return blended or pasted


def test_every_division_of_a_batch_sees_the_same_mixtures() -> None:
    source = MixedImages(_source(), seed=5, mixup=0.8, cutmix=1.0)
    whole = source.batch(1)
    for name, tensor in whole.items():
        parts = [source.batch(1, part=part, num_parts=3)[name] for part in range(3)]
        assert torch.equal(torch.stack(parts, dim=1).flatten(0, 1), tensor), name
    assert not torch.equal(source.batch(2)["label_share"], whole["label_share"])


def test_parameters_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="label_smoothing is 1"):
        Classification(label_smoothing=1.0)
    with pytest.raises(ValueError, match="mixup is 0"):
        MixedImages(_source(), seed=0)
