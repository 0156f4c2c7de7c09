"""Image batches as a function of seed and step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from train.batches.image_batches import ImageBatches, LabelledPixels, sequential_image_batches

MEAN, STD = (0.1, 0.2, 0.3), (0.5, 0.25, 1.0)


def images(count: int = 40, *, height: int = 6, width: int = 5, seed: int = 0) -> LabelledPixels:
    """Random images whose label is their index."""
    pixels_NHWC = np.random.default_rng(seed).integers(1, 256, (count, height, width, 3), dtype=np.uint8)
    return LabelledPixels(pixels=pixels_NHWC, labels=np.arange(count), mean=MEAN, std=STD)


def pixels_of(values_CHW: torch.Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Undo the normalisation: (H, W, C)."""
    values_HWC = values_CHW.permute(1, 2, 0).double() * torch.tensor(STD) + torch.tensor(MEAN)
    return (values_HWC * 255).round().to(torch.uint8).numpy()


def test_images_are_normalised_by_colour_with_their_labels() -> None:
    source = images(3)
    (batch,) = sequential_image_batches(source, batch_size=4)
    expected = (source.pixels.astype(np.float64) / 255 - MEAN) / STD
    assert batch["pixel_values"].dtype == torch.float32
    assert batch["pixel_values"].is_contiguous()
    np.testing.assert_allclose(batch["pixel_values"].numpy(), expected.transpose(0, 3, 1, 2), rtol=0, atol=1e-6)
    assert batch["labels"].tolist() == [0, 1, 2]


def test_sequential_batches_hold_every_image_once_in_order() -> None:
    batches = sequential_image_batches(images(7), batch_size=3)
    assert [batch["labels"].tolist() for batch in batches] == [[0, 1, 2], [3, 4, 5], [6]]


def test_an_epoch_has_each_image_at_most_once_and_the_next_one_another_order() -> None:
    batches = ImageBatches(images(), batch_size=6, seed=1)
    assert batches.batches_per_epoch == 6
    epochs = [[batches.batch(6 * epoch + step)["labels"].tolist() for step in range(6)] for epoch in range(2)]
    assert len({label for labels in epochs[0] for label in labels}) == 36
    assert epochs[0] != epochs[1]


def test_batches_depend_on_seed_and_step_only() -> None:
    one, two = (ImageBatches(images(), batch_size=8, seed=3, crop_padding=2, flip=True) for _ in range(2))
    forwards = [one.batch(step)["pixel_values"] for step in range(12)]
    backwards = [two.batch(step)["pixel_values"] for step in reversed(range(12))][::-1]
    assert all(torch.equal(a, b) for a, b in zip(forwards, backwards, strict=True))
    other = ImageBatches(images(), batch_size=8, seed=4, crop_padding=2, flip=True)
    assert not torch.equal(forwards[0], other.batch(0)["pixel_values"])


def test_parts_share_out_the_images_of_the_whole_batch_with_the_same_crops() -> None:
    batches = ImageBatches(images(), batch_size=8, seed=0, crop_padding=2, flip=True)
    whole = batches.batch(5)
    for part in range(4):
        mine = batches.batch(5, part=part, num_parts=4)
        assert torch.equal(mine["pixel_values"], whole["pixel_values"][part::4])
        assert torch.equal(mine["labels"], whole["labels"][part::4])


def test_a_crop_is_a_shifted_window_of_the_image_in_black_mirrored_half_the_time() -> None:
    source, padding = images(), 2
    batches = ImageBatches(source, batch_size=40, seed=0, crop_padding=padding, flip=True)
    offsets, mirrored = set(), 0
    for step in range(4):
        batch = batches.batch(step)
        for values_CHW, label in zip(batch["pixel_values"], batch["labels"].tolist(), strict=True):
            padded = np.pad(source.pixels[label], ((padding, padding), (padding, padding), (0, 0)))
            pixels = pixels_of(values_CHW)
            found = [
                (top, left, flip)
                for top in range(2 * padding + 1)
                for left in range(2 * padding + 1)
                for flip in (False, True)
                if np.array_equal(padded[top : top + 6, left : left + 5][:, :: -1 if flip else 1], pixels)
            ]
            assert len(found) == 1
            offsets.add(found[0][:2])
            mirrored += found[0][2]
    assert len(offsets) == 25
    assert 45 <= mirrored <= 115  # 80 of 160 expected, standard deviation 6.3


def test_without_options_images_stay_as_they_are() -> None:
    source = images()
    batch = ImageBatches(source, batch_size=8, seed=0).batch(0)
    for values_CHW, label in zip(batch["pixel_values"], batch["labels"].tolist(), strict=True):
        assert np.array_equal(pixels_of(values_CHW), source.pixels[label])


def test_the_identity_follows_pixels_labels_and_options() -> None:
    def identity(source: LabelledPixels, **options: Any) -> dict[str, Any]:
        return ImageBatches(source, batch_size=8, seed=0, **options).identity()

    assert identity(images()) == identity(images())
    relabelled = LabelledPixels(pixels=images().pixels, labels=np.arange(40)[::-1], mean=MEAN, std=STD)
    others = [identity(images(seed=1)), identity(relabelled), identity(images(), flip=True)]
    assert all(other != identity(images()) for other in others)


def test_images_that_no_model_can_read_are_refused() -> None:
    pixels = np.zeros((2, 4, 4, 3), dtype=np.uint8)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"pixels": pixels.astype(np.float32)}, "expected uint8"),
        ({"pixels": pixels[..., :1]}, "expected uint8"),
        ({"pixels": pixels[:0], "labels": np.arange(0)}, "no image"),
        ({"labels": np.arange(3)}, "expected 2 class numbers"),
        ({"labels": np.array([0.0, 1.0])}, "expected 2 class numbers"),
        ({"labels": np.array([0, -1])}, "a label is -1"),
    ]
    for changes, message in cases:
        arguments: dict[str, Any] = {"pixels": pixels, "labels": np.arange(2), "mean": MEAN, "std": STD} | changes
        with pytest.raises(ValueError, match=message):
            LabelledPixels(**arguments)
    with pytest.raises(ValueError, match="do not fill a batch of 41"):
        ImageBatches(images(), batch_size=41, seed=0)
    with pytest.raises(ValueError, match="crop_padding is -1"):
        ImageBatches(images(), batch_size=4, seed=0, crop_padding=-1)
