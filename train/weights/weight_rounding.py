"""Weights rounded so that the errors of a row cancel on real inputs, one step per tensor.

Rounding each weight to its nearest step ignores that inputs are correlated. With the second moments ``H = sum_x x x'`` of a layer's input,
the error of its output is ``tr(E H E')``; here the columns are rounded one after the other, those with the largest moments first, and what is lost
in one is made up for in the columns that are still to come, by the Cholesky factor of ``H^-1``. The range of the tensor is the share of
its largest weight with the least such error: a weight that only the massive tokens needed, which a prefix now stands for, is clipped
without harm, while plain least-squares ranges clip what real tokens need.

The rounded values are written into the checkpoint, on the very grid that ``max|w| / 127`` gives, so every later quantization with
min-max weights finds them as they are.

(Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers", 2022; written here for one scale
per tensor.)

Shapes: I input and O output features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from train.families.known_families import layers_of
from train.simulation.quantization_places import SMALLEST_GEMM
from train.simulation.quantizer import check_bits
from train.weights.linear_inputs import observe_linear_inputs, readers_of
from train.weights.scale_candidates import RANGE_SHARES

_DAMPING = 0.01
"""Of the mean second moment, added to each: features that texts hardly used must not be bent to fit noise."""
_BLOCK = 64
"""Columns whose corrections are spread over the rest at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundedWeight:
    """What one weight lost, as squared error of the layer's output relative to its power."""

    nearest: float
    """Rounded to the nearest step of the full range."""
    compensated: float
    """As it is now."""
    range_share: float
    """Share of the largest weight that the grid covers."""


def round_weights(
    model: PreTrainedModel, batches: Sequence[Mapping[str, torch.Tensor]], *, bits: int = 8
) -> dict[str, RoundedWeight]:
    """Round the weights of every block's linear layers in place.

    Args:
        model: in evaluation mode, of a supported family; everything else about it is done.
        batches: keyword inputs of forward passes, on the model's device: a few thousand tokens, more than the widest layer has
            inputs.
        bits: of the grid.

    Returns:
        One entry per weight, by parameter name.

    Raises:
        ValueError: there is no text, or ``bits`` is outside 2 to 16.
    """
    check_bits(bits, what="bits")
    inputs = observe_linear_inputs(model, batches, samples=0, moments=True)
    names = {module: name for name, module in model.named_modules()}
    rounded: dict[str, RoundedWeight] = {}
    for layer in layers_of(model):
        for linear in (linear for readers in readers_of(layer) for linear in readers):
            if min(linear.weight.shape) >= SMALLEST_GEMM:
                rounded[f"{names[linear]}.weight"] = round_weight_(
                    linear.weight.detach(), inputs[linear].moments, bits=bits
                )
    return rounded


def round_weight_(weight_OI: torch.Tensor, moments_II: torch.Tensor, *, bits: int = 8) -> RoundedWeight:
    """Round one weight in place.

    Args:
        weight_OI: float32.
        moments_II: second moments of its input, any multiple of them.
        bits: of the grid.
    """
    levels = 2 ** (bits - 1) - 1
    largest = float(weight_OI.abs().max())
    power = _error(weight_OI, moments_II)
    if not largest or not power:
        return RoundedWeight(nearest=0.0, compensated=0.0, range_share=1.0)
    errors = {
        share: _error(_nearest(weight_OI, share * largest / levels, levels) - weight_OI, moments_II)
        for share in RANGE_SHARES
    }
    share = min(errors, key=lambda candidate: errors[candidate])
    step = share * largest / levels
    result_OI = _compensated(weight_OI, moments_II, step=step, levels=levels)
    compensated = _error(result_OI - weight_OI, moments_II)
    if compensated > errors[share] or float(result_OI.abs().max()) < (levels - 0.5) * step:
        # Only a weight at the end of the grid makes later quantizations find the same grid.
        result_OI, compensated = _nearest(weight_OI, step, levels), errors[share]
    weight_OI.copy_(result_OI)
    return RoundedWeight(nearest=errors[1.0] / power, compensated=compensated / power, range_share=share)


def _nearest(weight_OI: torch.Tensor, step: float, levels: int) -> torch.Tensor:
    return (weight_OI / step).round_().clamp_(-levels, levels).mul_(step)


def _error(error_OI: torch.Tensor, moments_II: torch.Tensor) -> float:
    return float(((error_OI @ moments_II) * error_OI).sum())


def _compensated(weight_OI: torch.Tensor, moments_II: torch.Tensor, *, step: float, levels: int) -> torch.Tensor:
    order_I = moments_II.diagonal().argsort(descending=True)
    rest_OI = weight_OI[:, order_I]
    ordered_II = moments_II[order_I][:, order_I]
    damped_II = ordered_II + _DAMPING * ordered_II.diagonal().mean() * torch.eye(len(order_I), device=order_I.device)
    inverse_II = torch.cholesky_inverse(torch.linalg.cholesky(damped_II))
    factor_II = torch.linalg.cholesky(inverse_II, upper=True)
    rounded_OI = torch.empty_like(rest_OI)
    for start in range(0, len(order_I), _BLOCK):
        end = min(start + _BLOCK, len(order_I))
        block_Ob, factor_bb = rest_OI[:, start:end], factor_II[start:end, start:end]
        lost_Ob = torch.empty_like(block_Ob)
        for column in range(end - start):
            nearest_O = _nearest(block_Ob[:, column], step, levels)
            lost_O = (block_Ob[:, column] - nearest_O) / factor_bb[column, column]
            block_Ob[:, column:] -= lost_O[:, None] * factor_bb[column, column:]
            rounded_OI[:, start + column], lost_Ob[:, column] = nearest_O, lost_O
        rest_OI[:, end:] -= lost_Ob @ factor_II[start:end, end:]
    result_OI = torch.empty_like(rounded_OI)
    result_OI[:, order_I] = rounded_OI
    return result_OI
