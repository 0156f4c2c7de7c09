"""Scales moved between neighbouring tensors of a decoder: the same function, with ranges that one step per tensor can cover.

A channel that is ten times as large as its neighbours costs all of them three bits of a per-tensor grid. Three pairs of tensors in a
layer can divide a channel on one side and multiply it on the other without changing what is computed:

- the gain of a norm and the input columns of the linear layers that read it;
- the rows of the value projection and the columns of the attention's output projection, shared by the query heads of a group; the stored
  values of a prefix go with them;
- the rows of a gated FFN's linear half and the columns of its output projection: ``down(act(gate x) * up x)`` is linear in ``up``.

Which scales are best depends on the grids of both sides, so candidates (:mod:`train.weights.scale_candidates`) are tried on real tokens with both
sides rounded, and the one with the least error is taken; changing nothing is among them.

Shapes: N sampled tokens, I and O features of a projection, U inner units, V features of all value heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from train.attention.stored_prefix import prefix_of
from train.conversion.convert import settings_of
from train.families.known_families import LayerModules, family_of, layers_of
from train.weights.linear_inputs import LinearInput, observe_linear_inputs
from train.weights.scale_candidates import Choice, best_scales, relative_error, rounded_input, rounded_weight

__all__ = ["Choice", "equalize"]


@torch.no_grad()
def equalize(model: PreTrainedModel, batches: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, Choice]:
    """Move scales in place; outputs stay the same to float rounding.

    Args:
        model: in evaluation mode, of a family with norms before its blocks and gated FFNs; without gates on the attention,
            which read the norm's output too.
        batches: keyword inputs of forward passes, on the model's device: a few thousand tokens.

    Returns:
        What was chosen, by layer and part: ``model.layers.3.values``.

    Raises:
        ValueError: the family is another one, the attention has gates, or there is no text.
    """
    family, settings = family_of(model), settings_of(model)
    if len(family.ffn_in) != 2 or not family.norms_before_blocks:
        raise ValueError(
            f"equalization takes models with norms before their blocks and gated FFNs; family '{family.name}' has others"
        )
    if settings is not None and settings.gate != "none":
        raise ValueError(f"the attention has gates ('{settings.gate}'); equalize the model before it gets some")
    inputs = observe_linear_inputs(model, batches)
    names = {module: name for name, module in model.named_modules()}
    choices: dict[str, Choice] = {}
    for layer in layers_of(model):
        name = names[layer.layer]
        choices[f"{name}.attention"] = _equalize_attention_input(layer, inputs[layer.query.linear])
        choices[f"{name}.values"] = _equalize_values(
            layer,
            inputs[layer.value.linear],
            inputs[layer.output_projection],
            scales_I=choices[f"{name}.attention"].scales,
        )
        choices[f"{name}.ffn"], choices[f"{name}.inner_units"] = _equalize_ffn(
            layer, inputs[layer.ffn_in[0]], inputs[layer.ffn_out]
        )
    return choices


def _equalize_attention_input(layer: LayerModules, read: LinearInput) -> Choice:
    projections = (layer.query, layer.key, layer.value)
    exact = [read.sample @ projection.weight.T for projection in projections]

    def error(scales_I: torch.Tensor) -> float:
        x_NI, power_I = rounded_input(read, scales_I)
        weights = [rounded_weight(projection.weight * scales_I, power_I) for projection in projections]
        return sum(relative_error(x_NI @ w_OI.T, y_NO) for w_OI, y_NO in zip(weights, exact, strict=True))

    largest_I = torch.stack([projection.weight.abs().amax(dim=0) for projection in projections]).amax(dim=0)
    choice = best_scales(read.largest, largest_I, error)
    _scale_norm(layer.attention_norm, choice.scales)
    for projection in projections:
        projection.weight.mul_(choice.scales)
    return choice


def _equalize_values(layer: LayerModules, read: LinearInput, context: LinearInput, *, scales_I: torch.Tensor) -> Choice:
    """``read`` is what the value projection read before its input was divided by ``scales_I``."""
    prefix, value, output = prefix_of(layer.attention), layer.value, layer.output_projection
    num_values = len(value.weight)
    head_size = int(layer.attention.head_dim)  # type: ignore[arg-type]
    repeats = output.in_features // num_values

    def per_value(x_I: torch.Tensor) -> torch.Tensor:
        return x_I.view(-1, repeats, head_size).amax(dim=1).flatten()

    def per_query(x_V: torch.Tensor) -> torch.Tensor:
        return x_V.view(-1, 1, head_size).expand(-1, repeats, -1).flatten()

    x_NI, power_I = rounded_input(read, scales_I)
    exact_NV = read.sample @ (value.weight / scales_I).T
    exact_NO = context.sample @ output.weight.T

    def error(scales_V: torch.Tensor) -> float:
        value_VI = rounded_weight(value.weight / scales_V[:, None], power_I)
        context_NI, context_power_I = rounded_input(context, per_query(scales_V))
        output_OI = rounded_weight(output.weight * per_query(scales_V), context_power_I)
        return relative_error(context_NI @ output_OI.T, exact_NO) + relative_error(
            (x_NI @ value_VI.T) * scales_V, exact_NV
        )

    choice = best_scales(per_value(context.largest), per_value(output.weight.abs().amax(dim=0)), error)
    value.weight.div_(choice.scales[:, None])
    if value.bias is not None:
        value.bias.div_(choice.scales)
    if prefix is not None:
        prefix.value.div_(choice.scales.view(-1, 1, head_size))
    output.weight.mul_(per_query(choice.scales))
    return choice


def _equalize_ffn(layer: LayerModules, read: LinearInput, inner: LinearInput) -> tuple[Choice, Choice]:
    activated, linear = layer.ffn_in
    bias: torch.Tensor | None = linear.bias
    exact_NO = inner.sample @ layer.ffn_out.weight.T
    activation = _activation_of(layer)

    def units(x_NI: torch.Tensor, power_I: torch.Tensor, weights: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        first_NU, second_NU = (
            F.linear(x_NI, rounded_weight(weight_UI, power_I), module.bias)
            for weight_UI, module in zip(weights, layer.ffn_in, strict=True)
        )
        result: torch.Tensor = activation(first_NU) * second_NU
        return result

    def input_error(scales_I: torch.Tensor) -> float:
        x_NI, power_I = rounded_input(read, scales_I)
        units_NU = units(x_NI, power_I, (activated.weight * scales_I, linear.weight * scales_I))
        return relative_error(units_NU @ layer.ffn_out.weight.T, exact_NO)

    largest_I = torch.maximum(activated.weight.abs().amax(dim=0), linear.weight.abs().amax(dim=0))
    of_input = best_scales(read.largest, largest_I, input_error)
    _scale_norm(layer.ffn_norm, of_input.scales)
    activated.weight.mul_(of_input.scales)
    linear.weight.mul_(of_input.scales)
    x_NI, power_I = rounded_input(read, of_input.scales)
    gate_NU = activation(F.linear(x_NI, rounded_weight(activated.weight, power_I), activated.bias))

    def unit_error(scales_U: torch.Tensor) -> float:
        bias_U = None if bias is None else bias / scales_U
        units_NU = gate_NU * F.linear(x_NI, rounded_weight(linear.weight / scales_U[:, None], power_I), bias_U)
        rounded_NU, unit_power_U = rounded_input(inner, scales_U, sample=units_NU)
        return relative_error(rounded_NU @ rounded_weight(layer.ffn_out.weight * scales_U, unit_power_U).T, exact_NO)

    of_units = best_scales(inner.largest, layer.ffn_out.weight.abs().amax(dim=0), unit_error)
    linear.weight.div_(of_units.scales[:, None])
    if bias is not None:
        bias.div_(of_units.scales)
    layer.ffn_out.weight.mul_(of_units.scales)
    return of_input, of_units


def _scale_norm(norm: nn.Module, scales_I: torch.Tensor) -> None:
    """Divide what a norm puts out."""
    for parameter in norm.parameters():
        parameter.div_(scales_I)


def _activation_of(layer: LayerModules) -> nn.Module:
    """The activation function between a gated FFN's projections."""
    parents = [module for module in layer.layer.modules() if layer.ffn_out in module.children()]
    activation = parents[0].act_fn
    assert isinstance(activation, nn.Module)
    return activation
