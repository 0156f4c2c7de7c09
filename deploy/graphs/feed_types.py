"""Ids, masks and arrays in the element type that an input takes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

MASK_NAME = "attention_mask"
"""Input that marks tokens with 1 and padding with 0."""


def as_input_type(array: NDArray[Any], kind: np.dtype[Any], name: str) -> NDArray[Any]:
    """The array in an input's type: integers of any width for ids, and a mask also as booleans or floats.

    Raises:
        ValueError: a type that cannot stand for the input's.
    """
    if array.dtype == kind:
        return array
    is_whole = array.dtype.kind in "iub"
    if is_whole and (kind.kind in "iub" or (kind.kind == "f" and name == MASK_NAME)):
        return array.astype(kind)
    raise ValueError(f"input '{name}' is {array.dtype}; expected {kind}")
