"""Images as arrays of pixels: decoding, resizing and cutting out the centre. The one module that imports Pillow.

Legend: H height, W width, C the three colours red, green and blue, in this order.
"""

from __future__ import annotations

import io
from types import ModuleType
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]

Interpolation = Literal["nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"]
INTERPOLATIONS: tuple[Interpolation, ...] = get_args(Interpolation)
"""In the order of Pillow's numbers for them, which Hugging Face stores as ``resample``."""

_DECODED_FORMATS = ("JPEG", "PNG")
_EIGHT_BIT_MODES = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"})


def decode_image(data: bytes, *, where: str) -> Pixels:
    """Decode a JPEG or PNG image; grey, palette and CMYK images become RGB, transparency is dropped.

    An orientation noted in the file's metadata is not applied, as in timm's and torchvision's readers of folders.

    Args:
        data: the encoded image.
        where: names the image in messages.

    Returns:
        uint8 (H, W, C).

    Raises:
        ValueError: not a JPEG or PNG image, a truncated or damaged one, or one of more than 8 bits a channel.
        ImportError: Pillow is not installed.
    """
    pillow = _pillow()
    try:
        image = pillow.open(io.BytesIO(data), formats=_DECODED_FORMATS)
    except Exception as error:  # Pillow's readers of headers raise whatever the bytes lead them to
        raise ValueError(f"{where} is not a JPEG or PNG image ({len(data):,} bytes)") from error
    if image.mode not in _EIGHT_BIT_MODES:
        raise ValueError(f"{where} has pixels of mode '{image.mode}'; expected 8 bits a channel")
    try:
        return np.asarray(image.convert("RGB"))
    except Exception as error:  # as above, for the decoders
        raise ValueError(f"{where} is a damaged or truncated {image.format} image: {error}") from error


def resize_image(pixels_HWC: Pixels, size: tuple[int, int], *, interpolation: Interpolation) -> Pixels:
    """Resize with Pillow's filters, which widen with the reduction (antialias).

    Args:
        pixels_HWC: uint8 image.
        size: new height and width.
        interpolation: name of the filter.

    Returns:
        uint8, of the new size; the same array where it has this size already.

    Raises:
        ImportError: Pillow is not installed.
    """
    if pixels_HWC.shape[:2] == size:
        return pixels_HWC
    height, width = size
    pillow = _pillow()
    filter_number = pillow.Resampling(INTERPOLATIONS.index(interpolation))
    return np.asarray(pillow.fromarray(pixels_HWC).resize((width, height), filter_number))


def _pillow() -> ModuleType:
    try:
        from PIL import Image  # noqa: PLC0415 - an optional extra
    except ImportError as error:
        raise ImportError("images need Pillow; install it with: pip install 'quietformer[images]'") from error
    return Image
