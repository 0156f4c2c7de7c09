"""Simulated static W8A8 of a PyTorch model, at any bit width from 2 to 16, for the ``paper`` and ``tensorrt`` profiles.

Inside :func:`simulated` every forward pass of the model rounds weights and activations to per-tensor grids that were
calibrated on entry, on the float model; on leaving, the model is what it was, bit for bit, down to the parameter objects. It
answers during training, in seconds, what the exported integer graph will be worth.

Shapes: B batch, T tokens (queries), S keys, H heads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from train.attention.attention_sites import SiteName, attention_sites
from train.simulation.quantization_places import Places, ProfileName, Side, find_places
from train.simulation.quantizer import (
    RANGE_METHODS,
    WEIGHT_RANGES,
    ObservedRange,
    QuantizerGrid,
    RangeMethod,
    WeightRange,
    activation_grid,
    check_bits,
    weight_grid,
)

# (name, tensor) -> what is used instead of the tensor
TensorFunction = Callable[[str, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulation:
    """What a simulation quantizes, by name."""

    profile: ProfileName
    weights: Mapping[str, QuantizerGrid]
    """By parameter name."""
    activations: Mapping[str, QuantizerGrid]
    """By module name and side (``….output``, ``….input``) or attention site (``….scores``)."""


@contextmanager
def simulated(
    model: PreTrainedModel,
    calibration_batches: Iterable[Mapping[str, torch.Tensor]],
    *,
    profile: ProfileName = "paper",
    weights: WeightRange = "minmax",
    method: RangeMethod = "running-minmax",
    weight_bits: int = 8,
    activation_bits: int = 8,
) -> Iterator[Simulation]:
    """Quantize ``model`` for the length of a ``with`` block.

    The places are those of :mod:`train.simulation.quantization_places`. Training mode and gradients make no sense inside: the model is put in
    evaluation mode, and parameters are exchanged for their rounded values.

    Args:
        model: a converted model (vanilla settings included), on any device.
        calibration_batches: keyword inputs of forward passes, ``attention_mask`` (B, T) among them where rows are padded; padded
            positions are left out of the ranges. Read once.
        profile: ``paper``: activations asymmetric, at every site; ``tensorrt``: symmetric, inputs of linear layers.
        weights: range of the weights, ``minmax`` or ``mse``.
        method: range of the activations over the batches.
        weight_bits: b of the weights.
        activation_bits: b of the activations.

    Yields:
        The grids in use.

    Raises:
        ValueError: an unknown choice, no batch, a value that is not finite, or a model that is not converted.
    """
    check_bits(weight_bits, what="weight_bits")
    check_bits(activation_bits, what="activation_bits")
    for name, value, known in (("weights", weights, WEIGHT_RANGES), ("method", method, RANGE_METHODS)):
        if value not in known:
            raise ValueError(f"unknown {name} '{value}'; known are {', '.join(known)}")
    device = next(model.parameters()).device
    batches = [{name: tensor.to(device) for name, tensor in batch.items()} for batch in calibration_batches]
    if not batches:
        raise ValueError("no calibration batch; expected at least one")
    with ExitStack() as restore:
        _enter_evaluation_mode(model, restore)
        places = find_places(model, profile, batches[0])
        ranges = _calibrate(model, places, batches, method=method)
        simulation = Simulation(
            profile=profile,
            weights={
                name: weight_grid(getattr(module, parameter), bits=weight_bits, method=weights)
                for name, module, parameter in places.weights
            },
            activations={
                name: activation_grid(*observed.low_high, bits=activation_bits, symmetric=profile == "tensorrt")
                for name, observed in ranges.items()
            },
        )
        _exchange_weights(places, simulation, restore)
        restore.enter_context(tensors_replaced(places, lambda name, x: simulation.activations[name].fake_quantize(x)))
        yield simulation


def _enter_evaluation_mode(model: nn.Module, restore: ExitStack) -> None:
    modes = [(module, module.training) for module in model.modules()]

    def back() -> None:
        for module, training in modes:
            module.training = training

    restore.callback(back)
    model.eval()


def _exchange_weights(places: Places, simulation: Simulation, restore: ExitStack) -> None:
    """Give each module a rounded parameter of its own, so that a tied float head keeps the original."""
    for name, module, parameter in places.weights:
        original = getattr(module, parameter)
        rounded = simulation.weights[name].fake_quantize(original.detach())
        setattr(module, parameter, nn.Parameter(rounded, requires_grad=False))
        restore.callback(setattr, module, parameter, original)


def _calibrate(
    model: PreTrainedModel, places: Places, batches: list[dict[str, torch.Tensor]], *, method: RangeMethod
) -> dict[str, ObservedRange]:
    ranges: dict[str, ObservedRange] = {}
    mask_BT: torch.Tensor | None = None

    def observe(name: str, x: torch.Tensor) -> torch.Tensor:
        if name not in ranges:
            ranges[name] = ObservedRange(name, method)
        ranges[name].update(x, valid_positions(name, x, mask_BT))
        return x

    with torch.no_grad(), tensors_replaced(places, observe):
        for batch in batches:
            mask_BT = batch["attention_mask"].bool() if "attention_mask" in batch else None
            model(**batch)
    return ranges


def valid_positions(name: str, x: torch.Tensor, mask_BT: torch.Tensor | None) -> torch.Tensor | None:
    """Which values of a place's tensor come from real tokens.

    Args:
        name: of the place.
        x: its tensor.
        mask_BT: boolean, true on real tokens; ``None``: all are.

    Returns:
        Boolean mask broadcastable to ``x``, of its tokens or of its (query, key) pairs; ``None`` where every value counts.
    """
    if mask_BT is None:
        return None
    if name.endswith((".scores", ".probabilities")):
        keys_BS = F.pad(mask_BT, (x.shape[-1] - mask_BT.shape[1], 0), value=True)  # stored keys are never padding
        return mask_BT[:, None, :, None] & keys_BS[:, None, None, :]
    if x.ndim > 2 and x.shape[:2] == mask_BT.shape:
        return mask_BT.reshape(*mask_BT.shape, *(1,) * (x.ndim - 2))
    if x.ndim == 2 and len(x) == mask_BT.numel():  # the tokens of all rows as one, as some families lay them out
        return mask_BT.reshape(-1, 1)
    return None


@contextmanager
def tensors_replaced(places: Places, function: TensorFunction) -> Iterator[None]:
    """Pass the tensor at every activation place through ``function(name, tensor)`` for the length of a ``with`` block."""
    names = [name for name, _ in places.attentions]
    wanted = frozenset(places.attention_sites)

    def at_site(layer: int, site: SiteName, x: torch.Tensor) -> torch.Tensor:
        return function(f"{names[layer]}.{site}", x) if site in wanted else x

    with ExitStack() as hooks:
        for name, module, side in places.activations:
            hooks.callback(_hook(module, side, name, function).remove)
        if wanted:
            hooks.enter_context(attention_sites([attention for _, attention in places.attentions], at_site))
        yield


def _hook(module: nn.Module, side: Side, name: str, function: TensorFunction) -> torch.utils.hooks.RemovableHandle:
    if side == "stream":

        def change_input(_: nn.Module, args: tuple[Any, ...]) -> None:
            if (changed := function(name, args[0])) is not args[0]:
                args[0].copy_(changed)

        return module.register_forward_pre_hook(change_input)
    if side == "input":

        def replace_input(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            return function(name, args[0]), *args[1:]

        return module.register_forward_pre_hook(replace_input)

    def replace_output(_: nn.Module, args: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
        return function(name, output)

    return module.register_forward_hook(replace_output)
