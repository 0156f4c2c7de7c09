"""Images as the feeds of a graph: resized, cut to one size, normalised, as the checkpoint's preprocessing says.

Legend: B images of a batch, H height, W width, C the three colours.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from deploy.data.image_data import LabelledImage
from deploy.data.image_pixels import INTERPOLATIONS, Interpolation, Pixels, decode_image, resize_image

PIXEL_INPUT = "pixel_values"
"""Input of a vision graph."""

CropRounding = Literal["down", "even"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageEncoder:
    """Resize, cut out the centre, divide by 255, subtract ``mean``, divide by ``std``.

    Raises:
        ValueError: a value is outside its range.
    """

    size: tuple[int, int]
    """Height and width of what the model sees, in pixels."""
    mean: tuple[float, float, float]
    """Of red, green and blue, in 0 to 1."""
    std: tuple[float, float, float]
    """Of red, green and blue, above 0."""
    interpolation: Interpolation = "bilinear"
    resize: tuple[int, int] | int | None = None
    """Resize to this height and width, or until the shorter edge has so many pixels; ``None``: to ``size``. What exceeds
    ``size`` is cut off around the centre."""
    crop_rounding: CropRounding = "down"
    """Where half of an odd excess is no whole pixel: ``down`` as transformers does, ``even`` (to the even neighbour) as
    torchvision and timm do."""

    def __post_init__(self) -> None:
        """Check every value."""
        if min(self.size) < 1:
            raise ValueError(f"image size is {self.size}; expected height and width in pixels")
        for name in ("mean", "std"):
            values = getattr(self, name)
            if len(values) != 3 or not all(math.isfinite(value) for value in values):
                raise ValueError(f"image {name} is {values}; expected three finite numbers, one a colour")
        if min(self.std) <= 0:
            raise ValueError(f"image std is {self.std}; expected numbers above 0")
        if self.interpolation not in INTERPOLATIONS:
            raise ValueError(f"unknown interpolation '{self.interpolation}'; known are {', '.join(INTERPOLATIONS)}")
        if self.crop_rounding not in get_args(CropRounding):
            raise ValueError(
                f"unknown crop_rounding '{self.crop_rounding}'; known are {', '.join(get_args(CropRounding))}"
            )
        resized = (self.resize, self.resize) if isinstance(self.resize, int) else self.resize or self.size
        if resized[0] < self.size[0] or resized[1] < self.size[1]:
            raise ValueError(f"images are resized to {self.resize}, which leaves no {self.size} to cut out")

    def pixels(self, images: Iterable[LabelledImage | Pixels]) -> Pixels:
        """Decoded images of the model's size, not yet normalised: what training keeps in memory.

        Args:
            images: encoded images, or decoded ones as uint8 (H, W, C) of any size.

        Returns:
            uint8 (B, H, W, C) with H and W of ``size``.

        Raises:
            ValueError: no image, or one that cannot be decoded.
            ImportError: Pillow is not installed.
        """
        made = [self._pixels(image) for image in images]
        if not made:
            raise ValueError("no images to encode; expected at least one")
        return np.stack(made)

    def normalise(self, pixels_BHWC: Pixels) -> NDArray[np.float32]:
        """Images of :meth:`pixels` as the model takes them.

        Returns:
            float32 (B, C, H, W).
        """
        values_BHWC = pixels_BHWC.astype(np.float32) / np.float32(255)
        values_BHWC -= np.asarray(self.mean, dtype=np.float32)
        values_BHWC /= np.asarray(self.std, dtype=np.float32)
        return np.ascontiguousarray(values_BHWC.transpose(0, 3, 1, 2))

    def encode(self, images: Iterable[LabelledImage | Pixels]) -> NDArray[np.float32]:
        """:meth:`pixels`, then :meth:`normalise`; raises what the former does."""
        return self.normalise(self.pixels(images))

    def feeds(
        self, images: Iterable[LabelledImage | Pixels], *, input_names: Iterable[str] = (PIXEL_INPUT,)
    ) -> dict[str, NDArray[np.float32]]:
        """Feeds of one batch: ``pixel_values``, float32 (B, C, H, W).

        Raises:
            ValueError: as :meth:`pixels`, or an input that is not one of images.
        """
        if unknown := [name for name in input_names if name != PIXEL_INPUT]:
            raise ValueError(f"cannot make input '{unknown[0]}' from images; images give {PIXEL_INPUT}")
        return {PIXEL_INPUT: self.encode(images)}

    def identity(self) -> dict[str, Any]:
        """What a calibration cache says of the preprocessing: plain values."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    def _pixels(self, image: LabelledImage | Pixels) -> Pixels:
        pixels_HWC = decode_image(image.read(), where=image.where) if isinstance(image, LabelledImage) else image
        resized_HWC = resize_image(pixels_HWC, self._resized(pixels_HWC.shape), interpolation=self.interpolation)
        top, left = (self._offset(resized_HWC.shape[axis] - self.size[axis]) for axis in (0, 1))
        return resized_HWC[top : top + self.size[0], left : left + self.size[1]]

    def _resized(self, shape: tuple[int, ...]) -> tuple[int, int]:
        if not isinstance(self.resize, int):
            return self.resize or self.size
        height, width = shape[:2]
        longer = int(self.resize * max(height, width) / min(height, width))
        return (self.resize, longer) if height <= width else (longer, self.resize)

    def _offset(self, excess: int) -> int:
        return excess // 2 if self.crop_rounding == "down" else round(excess / 2)
