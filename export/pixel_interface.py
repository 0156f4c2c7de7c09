"""The edge of a graph that reads images: one input ``pixel_values`` of a static size, whatever the batch.

Legend: B batch, C channels, H height, W width.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from deploy.data.image_encoding import PIXEL_INPUT

_TRACED_BATCH = 2
_CHANNELS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class PixelInterface:
    """Names and sizes; :class:`export.tracing.GraphInterface` is the counterpart for tokens."""

    output: str
    """``last_hidden_state`` or ``logits``."""
    size: tuple[int, int]
    """Height and width in pixels."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Input names."""
        return (PIXEL_INPUT,)

    @property
    def sizes(self) -> dict[str, list[int | str]]:
        """Sizes of each input of the graph, a name where a size is free."""
        return {PIXEL_INPUT: ["batch", _CHANNELS, *self.size]}

    @property
    def mask_sizes(self) -> None:
        """Sizes of the mask that scores get: images have no padding."""
        return None

    def example(self) -> tuple[Tensor, ...]:
        """What is traced. The batch is above 1, which torch would take for a constant."""
        return (torch.zeros(_TRACED_BATCH, _CHANNELS, *self.size),)

    def dynamic_shapes(self) -> tuple[dict[int, object], ...]:
        """Dimensions of each input that stay free."""
        return ({0: torch.export.Dim("batch")},)

    def wrapped(self, model: PreTrainedModel) -> nn.Module:
        """The model behind this interface."""
        return TracedVisionModel(model, self)

    def parity_shapes(self) -> tuple[tuple[int, None], ...]:
        """Three batches other than the traced one; there is no length."""
        return (1, None), (3, None), (5, None)

    def random_feeds(self, batch: int, *, seed: int) -> dict[str, np.ndarray]:
        """Pixels as normalisation makes them, float32 (B, C, H, W); the same for the same seed and batch."""
        generator = np.random.default_rng((seed, batch))
        return {PIXEL_INPUT: generator.standard_normal((batch, _CHANNELS, *self.size)).astype(np.float32)}


class TracedVisionModel(nn.Module):
    """The model behind the graph's interface: pixels in, one float tensor out."""

    def __init__(self, model: PreTrainedModel, interface: PixelInterface) -> None:
        super().__init__()
        self.model = model
        self.interface = interface

    def forward(self, pixel_values: Tensor) -> Tensor:
        """The output named in the interface, float32."""
        output: Tensor = getattr(self.model(pixel_values=pixel_values, return_dict=True), self.interface.output)
        return output
