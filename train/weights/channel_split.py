"""Split the inner units of a feed-forward block that carry its largest weights, without changing what the block computes.

A pretrained FFN output projection writes its outliers with a few huge weights: in a public sentence encoder the largest is 175 standard
deviations of its matrix, and a scale per tensor that covers it leaves the rest of the matrix 6 of its 127 steps. An inner unit ``h_j`` that
is computed ``n`` times and read with ``W[:, j] / n`` adds the same to the output, so the weight can be divided at the cost of ``n - 1`` more
units, which are handed out one by one to whichever unit holds the largest weight. 16 units, a percent of the layer, bring 175 deviations to 14.

(Outlier channel splitting: Zhao et al., "Improving Neural Network Quantization without Retraining using Outlier Channel Splitting", 2019.)
"""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedModel

from train.families.known_families import family_of, layers_of


def split_channels(model: PreTrainedModel, *, units: int) -> None:
    """Widen every feed-forward block by ``units`` inner units, in place; outputs stay the same to float rounding.

    The copies are parameters of their own from then on: training may let them drift apart. The width is recorded in the
    config, so the checkpoint is one of the library's own.

    Args:
        model: of a supported family.
        units: how many units each block gets, at least 1. Integer kernels like widths that 16 divides.

    Raises:
        ValueError: the family is not supported, its config does not say how wide the blocks are, or ``units`` is not positive.
    """
    if units < 1:
        raise ValueError(f"cannot split into {units} further units; expected at least 1")
    width_name = family_of(model).ffn_width
    if width_name is None:
        raise ValueError(
            f"the config of model type '{model.config.model_type}' has no number of inner units to raise, so that a split "
            "model could not be loaded again"
        )
    with torch.no_grad():
        for layer in layers_of(model):
            copies_F = copies_of(layer.ffn_out.weight, units=units)
            source_E = torch.repeat_interleave(copies_F)
            for linear in layer.ffn_in:
                linear.weight = nn.Parameter(linear.weight[source_E].clone())
                if linear.bias is not None:
                    linear.bias = nn.Parameter(linear.bias[source_E].clone())
                linear.out_features += units
            layer.ffn_out.weight = nn.Parameter((layer.ffn_out.weight / copies_F)[:, source_E].clone())
            layer.ffn_out.in_features += units
    setattr(model.config, width_name, getattr(model.config, width_name) + units)


def copies_of(weight_DF: torch.Tensor, *, units: int) -> torch.Tensor:
    """How often each inner unit is to be computed, as int64 (F,) that sums to F + ``units``.

    Args:
        weight_DF: output projection (output features, inner units).
        units: how many more units there are.
    """
    largest_F = weight_DF.abs().amax(dim=0).double()
    copies_F = torch.ones_like(largest_F)
    for _ in range(units):
        copies_F[(largest_F / copies_F).argmax()] += 1
    return copies_F.long()
