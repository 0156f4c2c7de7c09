"""Widths of integers, as people write them: ``W8A8``, ``W6A8``.

Only 8-bit integers are run by the integer kernels of a CPU or GPU. Other widths are stored in the next larger type and bounded
to their range, so that the graph computes what such hardware would: a simulation, and labelled as one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from deploy.graphs.profiles import Profile
from deploy.quantization.float8 import ELEMENT, ELEMENT_TYPE

NARROWEST, WIDEST = 2, 16
WIDE_OPSET = 21
"""First opset whose QuantizeLinear gives 16-bit integers (ONNX operator reference)."""
_FORM = re.compile(r"W(\d+)A(\d+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Bits:
    """Widths of weights and activations.

    Raises:
        ValueError: a width outside of 2 to 16.
    """

    weights: int = 8
    activations: int = 8

    def __post_init__(self) -> None:
        for name, width in (("weights", self.weights), ("activations", self.activations)):
            if not NARROWEST <= width <= WIDEST:
                raise ValueError(f"{width} bits for {name}; expected {NARROWEST} to {WIDEST}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``W6A8``.

        Raises:
            ValueError: another form, or a width out of range.
        """
        found = _FORM.fullmatch(text)
        if found is None:
            raise ValueError(f"bits '{text}' are not of the form W8A8")
        return cls(weights=int(found[1]), activations=int(found[2]))

    def __str__(self) -> str:
        return f"W{self.weights}A{self.activations}"

    @property
    def is_simulated(self) -> bool:
        """Whether no integer kernel has these widths."""
        return (self.weights, self.activations) != (8, 8)

    @property
    def is_wide(self) -> bool:
        """Whether 8-bit types are too narrow for either."""
        return max(self.weights, self.activations) > 8

    def activation_type(self, profile: Profile) -> str:
        """Element type that activations are stored in, as NumPy calls it."""
        if profile.is_float8:
            return ELEMENT
        return f"{'int' if profile.symmetric else 'uint'}{storage(self.activations)}"

    def weight_type(self, profile: Profile) -> np.dtype[Any]:
        """Element type that weights are stored in."""
        if profile.is_float8:
            return ELEMENT_TYPE
        return np.dtype(np.int8 if self.weights <= 8 else np.int16)

    def check(self, profile: Profile) -> None:
        """Refuse widths that a profile does not have.

        Raises:
            ValueError: other than 8 bits in a profile whose graphs are for integer kernels.
        """
        if self.is_simulated and not profile.every_tensor:
            raise ValueError(f"profile '{profile.name}' is for 8-bit kernels; {self} exists in profile 'paper' only")


def storage(width: int) -> int:
    """Width of the smallest element type of ONNX that holds integers so wide (4-bit types are no kernels' here)."""
    return 8 if width <= 8 else 16
