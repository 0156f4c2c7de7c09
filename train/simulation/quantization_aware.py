"""Quantization-aware updates: the student computes on rounded values, gradients pass as if nothing were rounded.

A value goes forward as its fake-quantized self and backward through the identity (straight-through). Weights take the grid of their
largest magnitude, activations that of the smallest and largest value on real tokens of the very batch: nothing is ever
clipped, and nothing has to be remembered between updates, so a resumed run is exact. The last tens of updates of a retrofit done this way
teach the weights to live with their own per-tensor grid, which a penalty on activations cannot.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from transformers import PreTrainedModel

from train.simulation.fake_quant import tensors_replaced, valid_positions
from train.simulation.quantization_places import ProfileName, find_places
from train.simulation.quantizer import ObservedRange, QuantizerGrid, activation_grid, check_bits, weight_grid


class QuantizationAware:
    """Rounds a model at the places of a profile, with gradients.

    Raises:
        ValueError: as :func:`train.simulation.quantization_places.find_places`, or bits outside 2 to 16.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        batch: Mapping[str, torch.Tensor],
        *,
        profile: ProfileName,
        weight_bits: int = 8,
        activation_bits: int = 8,
    ) -> None:
        """Find the places.

        Args:
            model: a converted model, in evaluation mode while this runs.
            batch: keyword inputs of one forward pass.
            profile: which places.
            weight_bits: of the weights.
            activation_bits: of the activations.
        """
        check_bits(weight_bits, what="weight_bits")
        check_bits(activation_bits, what="activation_bits")
        device = next(model.parameters()).device
        self._places = find_places(model, profile, {name: tensor.to(device) for name, tensor in batch.items()})
        self._symmetric = profile == "tensorrt"
        self._weight_bits, self._activation_bits = weight_bits, activation_bits

    @contextmanager
    def rounding(self, mask_BT: torch.Tensor | None) -> Iterator[None]:
        """Round the model for one forward pass.

        A rounded weight hides the parameter of its module as an instance attribute of the same name; parameters, their names and the
        optimizer see nothing of it.

        Args:
            mask_BT: 1 on real tokens; ``None``: all are.
        """
        valid_BT = None if mask_BT is None else mask_BT.bool()

        def round_activation(name: str, x: torch.Tensor) -> torch.Tensor:
            observed = ObservedRange(name, "minmax")
            observed.update(x.detach(), valid_positions(name, x, valid_BT))
            grid = activation_grid(*observed.low_high, bits=self._activation_bits, symmetric=self._symmetric)
            return straight_through(x, grid)

        owners = [(module, parameter) for _, module, parameter in self._places.weights]
        try:
            for module, parameter in owners:
                weight = getattr(module, parameter)
                grid = weight_grid(weight, bits=self._weight_bits, method="minmax")
                module.__dict__[parameter] = straight_through(weight, grid)
            with tensors_replaced(self._places, round_activation):
                yield
        finally:
            for module, parameter in owners:
                module.__dict__.pop(parameter, None)


def straight_through(x: torch.Tensor, grid: QuantizerGrid) -> torch.Tensor:
    """``x`` rounded to ``grid``, with the gradient of ``x`` itself; any shape."""
    return x + (grid.fake_quantize(x.detach()) - x.detach())
