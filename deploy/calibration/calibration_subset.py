"""The batches to calibrate on: a random subset of texts or images that seed and sizes decide alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from deploy.data.encoding import INPUT_NAMES, TextEncoder
from deploy.data.image_data import LabelledImage
from deploy.data.image_encoding import PIXEL_INPUT, ImageEncoder

Batch = dict[str, NDArray[Any]]
Example = TypeVar("Example")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DrawnBatches(Sequence[Batch], Generic[Example]):
    """Batches of texts or images, encoded when they are asked for: memory holds one of them."""

    examples: tuple[Example, ...]
    encode: Callable[[Sequence[Example]], Batch]
    batch_size: int

    def __len__(self) -> int:
        return math.ceil(len(self.examples) / self.batch_size)

    @overload
    def __getitem__(self, index: int) -> Batch: ...

    @overload
    def __getitem__(self, index: slice) -> list[Batch]: ...

    def __getitem__(self, index: int | slice) -> Batch | list[Batch]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        start = range(len(self))[index] * self.batch_size
        return self.encode(self.examples[start : start + self.batch_size])


def calibration_batches(
    texts: Sequence[str],
    encoder: TextEncoder,
    *,
    batches: int = 16,
    batch_size: int = 16,
    seed: int,
    length: int | None = None,
    input_names: Iterable[str] = INPUT_NAMES,
) -> tuple[DrawnBatches[str], list[int]]:
    """Draw texts without repetition.

    Args:
        texts: to draw from.
        encoder: cuts each to its ``max_length`` tokens.
        batches: how many batches to make.
        batch_size: rows of each.
        seed: of the draw.
        length: pad every batch to so many tokens; by default each to its own longest row.
        input_names: the graph's inputs.

    Returns:
        The batches, each int64 (batch_size, T) by input name, and the texts' indices in the order of the rows.

    Raises:
        ValueError: fewer texts than needed, or a size below 1.
    """
    indices = _draw(len(texts), "texts", batches=batches, batch_size=batch_size, seed=seed)
    names = list(input_names)

    def encode(rows: Sequence[str]) -> Batch:
        return dict(encoder.feeds(encoder.encode(list(rows)), length=length, input_names=names))

    chosen = tuple(texts[index] for index in indices)
    return DrawnBatches(examples=chosen, encode=encode, batch_size=batch_size), indices


def _draw(available: int, what: str, *, batches: int, batch_size: int, seed: int) -> list[int]:
    """Indices of a random subset, in random order."""
    if batches < 1 or batch_size < 1:
        raise ValueError(f"{batches} batches of {batch_size}; expected at least 1 of each")
    if available < (needed := batches * batch_size):
        raise ValueError(f"{available} {what}; {batches} batches of {batch_size} need {needed}")
    return [int(index) for index in np.random.default_rng(seed).permutation(available)[:needed]]


def image_calibration_batches(
    images: Sequence[LabelledImage], encoder: ImageEncoder, *, batches: int = 16, batch_size: int = 16, seed: int
) -> tuple[DrawnBatches[LabelledImage], list[int]]:
    """Draw images without repetition.

    Args:
        images: to draw from; labels are not read.
        encoder: prepares each as the checkpoint says.
        batches: how many batches to make.
        batch_size: images of each.
        seed: of the draw.

    Returns:
        The batches, ``pixel_values`` float32 (batch_size, C, H, W), and the images' indices in the order of the rows.

    Raises:
        ValueError: fewer images than needed, or a size below 1; on reading a batch, an image that cannot be decoded.
    """
    indices = _draw(len(images), "images", batches=batches, batch_size=batch_size, seed=seed)
    chosen = tuple(images[index] for index in indices)

    def encode(rows: Sequence[LabelledImage]) -> Batch:
        return dict(encoder.feeds(rows))

    return DrawnBatches(examples=chosen, encode=encode, batch_size=batch_size), indices


def random_image_batches(encoder: ImageEncoder, *, batches: int = 16, batch_size: int = 16, seed: int) -> list[Batch]:
    """Batches of images of noise, for builds and timings whose accuracy nobody measures.

    Returns:
        ``pixel_values``, float32 (batch_size, C, H, W).
    """
    generator = np.random.default_rng(seed)
    shape = (batch_size, *encoder.size, 3)
    return [{PIXEL_INPUT: encoder.normalise(generator.integers(0, 256, shape, dtype=np.uint8))} for _ in range(batches)]


def preprocessing_identity(encoder: TextEncoder, *, length: int | None = None) -> dict[str, Any]:
    """What a calibration cache says of tokenizer, length and padding."""
    return {
        "tokenizer_sha256": encoder.tokenizer_sha256,
        "max_length": encoder.max_length,
        "padding": "longest row" if length is None else f"to {length} tokens",
        "pad_token_id": encoder.pad_token_id,
    }


def random_batches(
    *,
    vocab_size: int,
    length: int,
    batches: int = 16,
    batch_size: int = 16,
    seed: int,
    input_names: Iterable[str] = INPUT_NAMES,
) -> list[Batch]:
    """Batches of random token ids, for builds that nobody measures accuracy on.

    Returns:
        int64 (batch_size, length) by input name, nothing padded.

    Raises:
        ValueError: an input that is not one of text.
    """
    generator = np.random.default_rng(seed)
    names = list(input_names)
    if unknown := sorted(set(names) - set(INPUT_NAMES)):
        raise ValueError(f"cannot make input '{unknown[0]}' at random; known are {', '.join(INPUT_NAMES)}")
    made: list[Batch] = []
    for _ in range(batches):
        ids_BT = generator.integers(0, vocab_size, (batch_size, length), dtype=np.int64)
        batch = dict(zip(INPUT_NAMES, (ids_BT, np.ones_like(ids_BT), np.zeros_like(ids_BT)), strict=True))
        made.append({name: batch[name] for name in names})
    return made
