"""Limit on single weights: what keeps a per-tensor 8-bit grid fine enough for the rest of a matrix.

A pretrained FFN output projection writes its outliers with a few huge weights: in a public sentence encoder the largest is 175 standard
deviations of its matrix, and rounding to the grid it asks for has a signal-to-noise ratio of 8 dB where other matrices have 35.
The activations' penalty shrinks these weights too slowly, so they are clipped while the distillation makes up for it: to
``c_k = start^(1 - t) * limit^t`` standard deviations after update ``k``, ``t`` rising linearly to 1 while
the penalty ramps up: the earlier it is over, the longer the rest of the matrix has to make up for it. The limit is a function of the step and the weights alone, so a resumed run is exact.
"""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from train.families.known_families import layers_of

_START = 256.0
"""Deviations that the limit starts from: above what pretrained weights show."""


class WeightLimit:
    """Clips the weights of every layer's linear projections.

    Raises:
        ValueError: the model's family is unknown.
    """

    def __init__(self, model: PreTrainedModel, *, deviations: float, ramp_steps: int) -> None:
        """Find the weights.

        Args:
            model: a supported model.
            deviations: final limit, in standard deviations of each matrix.
            ramp_steps: updates until the final limit holds; 0: from the first one on.
        """
        self._deviations, self._ramp_steps = deviations, max(1, ramp_steps)
        self._weights = [linear.weight for layer in layers_of(model) for linear in layer.linears]

    def at_step(self, step: int) -> float:
        """The limit after update ``step`` (from 0), in standard deviations."""
        progress = min(1.0, (step + 1) / self._ramp_steps)
        return float(max(_START, self._deviations) ** (1.0 - progress) * self._deviations**progress)

    @torch.no_grad()
    def clip_(self, step: int) -> None:
        """Clip the weights in place after update ``step``."""
        deviations = self.at_step(step)
        for weight in self._weights:
            largest = deviations * weight.std()
            weight.clamp_(-largest, largest)
