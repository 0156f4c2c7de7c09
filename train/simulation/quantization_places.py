"""Where a profile quantizes in a PyTorch model: the weights by module, the activations by module side or attention site.

The same policy as the graph side's site list: ``paper`` quantizes every tensor of PAPER, section 5, and the gate path; ``tensorrt`` only what
enters linear layers and convolutions (of the patches of an image). In both, a linear layer whose output is an output of the model (LM
head, classifier) stays float with its weight, also where it is tied to the embeddings, as do the model's outputs, biases and the insides of LayerNorm, RMSNorm, softmax and activation functions. A linear layer whose output
goes straight into an activation function is quantized after that function only.

With norms before the blocks a residual sum is read by a norm and by the next sum. ``paper`` rounds it for both (side
``stream``), as an integer graph does that quantizes the sum itself. The product of a gated FFN's two halves is rounded
where it enters the output projection.

What is an output and what enters an activation function is seen by running the model once and comparing storages, so no
family's head or pooler has to be described here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import nn
from transformers import PreTrainedModel

from train.attention.attention_sites import SiteName
from train.attention.gates import Gate
from train.families.known_families import family_of, layers_of, norms_of

ProfileName = Literal["paper", "tensorrt"]
PROFILE_NAMES: tuple[ProfileName, ...] = get_args(ProfileName)

_PAPER_SITES: tuple[SiteName, ...] = ("gate_hidden", "gate", "scores", "probabilities", "values_mixed", "context")
_ACTIVATION_MODULES = ("torch.nn.modules.activation", "transformers.activations", "timm.layers.activations")
SMALLEST_GEMM = 16
"""``tensorrt``: linear layers with fewer input or output features stay float."""

Side = Literal["input", "output", "stream"]
"""``stream``: the input, exchanged in place so that its other readers see the exchanged values too."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """Everything that a profile quantizes in one model, in the order of its modules."""

    weights: tuple[tuple[str, nn.Module, str], ...]
    """Name, module that owns the parameter, and the parameter's name there."""
    activations: tuple[tuple[str, nn.Module, Side], ...]
    """Name, module, and which side of it."""
    attentions: tuple[tuple[str, nn.Module], ...]
    """Attention modules by layer, with their names."""
    attention_sites: tuple[SiteName, ...]
    """Sites inside each of them."""


def find_places(model: PreTrainedModel, profile: ProfileName, batch: Mapping[str, torch.Tensor]) -> Places:
    """Places of one profile.

    Args:
        model: converted (vanilla settings included), in evaluation mode.
        profile: which policy.
        batch: keyword inputs of one forward pass, on the model's device.

    Raises:
        ValueError: unknown profile, unsupported family, or a model that was not converted.
    """
    if profile not in PROFILE_NAMES:
        raise ValueError(f"unknown profile '{profile}'; known are {', '.join(PROFILE_NAMES)}")
    names = {module: name for name, module in model.named_modules()}
    attentions = [layer.attention for layer in layers_of(model)]
    if not all(hasattr(attention, "quiet_settings") for attention in attentions):
        raise ValueError(
            "the model is not converted; train.conversion.convert.convert it first (vanilla settings change nothing)"
        )
    flow = _trace(model, batch)
    products = {layer.ffn_out for layer in layers_of(model) if len(layer.ffn_in) > 1}
    weights: list[tuple[str, nn.Module, str]] = []
    activations: list[tuple[str, nn.Module, Side]] = []
    for module, name in names.items():
        sides, parameters = (_paper if profile == "paper" else _tensorrt)(module, flow)
        if profile == "paper" and module in products:
            sides = ["input", *sides]
        weights += [(f"{name}.{parameter}", module, parameter) for parameter in parameters]
        activations += [(f"{name}.{'output' if side == 'output' else 'input'}", module, side) for side in sides]
    return Places(
        weights=tuple(weights),
        activations=tuple(activations),
        attentions=tuple((names[attention], attention) for attention in attentions),
        attention_sites=_PAPER_SITES if profile == "paper" else (),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Flow:
    """What one forward pass showed."""

    reached: frozenset[nn.Module]
    ends: frozenset[nn.Module]
    """Modules whose output is an output of the model."""
    activated: frozenset[nn.Module]
    """Linear layers whose output goes into an activation function."""
    norms: frozenset[nn.Module]
    stream_norms: frozenset[nn.Module]
    """Norms before the blocks: what they read is read by the next residual sum as well."""


def _paper(module: nn.Module, flow: _Flow) -> tuple[list[Side], list[str]]:
    """Sides and weights that ``paper`` quantizes of one module."""
    output: list[Side] = [] if module in flow.ends else ["output"]
    if isinstance(module, Gate):
        return [], _matrices(module)
    if isinstance(module, nn.Embedding):
        return [], ["weight"]
    if module not in flow.reached:
        return [], []
    if isinstance(module, nn.Conv2d):
        return ["input", *output], ["weight"]
    if module in flow.norms:
        side: Side = "stream" if module in flow.stream_norms else "input"
        return [side, *output], ([] if getattr(module, "weight", None) is None else ["weight"])
    if isinstance(module, nn.Linear):
        if module in flow.ends:
            return [], []
        return ([] if module in flow.activated else ["output"]), ["weight"]
    return (output if _is_activation(module) else []), []


def _tensorrt(module: nn.Module, flow: _Flow) -> tuple[list[Side], list[str]]:
    """Sides and weights that ``tensorrt`` quantizes of one module."""
    if module in flow.ends or module not in flow.reached:
        return [], []
    if isinstance(module, nn.Conv2d):
        return ["input"], ["weight"]
    if not isinstance(module, nn.Linear):
        return [], []
    if min(module.in_features, module.out_features) < SMALLEST_GEMM:
        return [], []
    return ["input"], ["weight"]


def _matrices(gate: Gate) -> list[str]:
    return [name for name, parameter in gate.named_parameters() if parameter.ndim > 1]


def _is_activation(module: nn.Module) -> bool:
    return type(module).__module__ in _ACTIVATION_MODULES


def _trace(model: PreTrainedModel, batch: Mapping[str, torch.Tensor]) -> _Flow:
    """Run the model and compare storages; results are kept alive meanwhile, so equal storages are equal tensors."""
    norms = {*norms_of(model), *(module for module in model.modules() if isinstance(module, nn.LayerNorm))}
    watched = [m for m in model.modules() if isinstance(m, (nn.Linear, nn.Conv2d)) or m in norms or _is_activation(m)]
    results: dict[nn.Module, torch.Tensor] = {}
    read_by_activations: list[torch.Tensor] = []

    def keep(module: nn.Module, args: tuple[Any, ...], output: torch.Tensor) -> None:
        results[module] = output
        if _is_activation(module):
            read_by_activations.append(args[0])

    handles = [module.register_forward_hook(keep) for module in watched]
    try:
        with torch.inference_mode():
            outputs = model(**batch)
    finally:
        for handle in handles:
            handle.remove()
    ends = {_storage(value) for value in outputs.values() if isinstance(value, torch.Tensor)}
    activated = {_storage(value) for value in read_by_activations}
    return _Flow(
        reached=frozenset(results),
        ends=frozenset(module for module, result in results.items() if _storage(result) in ends),
        activated=frozenset(
            module
            for module, result in results.items()
            if isinstance(module, nn.Linear) and _storage(result) in activated
        ),
        norms=frozenset(norms),
        stream_norms=frozenset(_stream_norms(model)),
    )


def _stream_norms(model: PreTrainedModel) -> list[nn.Module]:
    """The layers' norms where they stand before the blocks: the attention's sum is read by the FFN's norm."""
    family = family_of(model)
    if not family.norms_before_blocks:
        return []
    return [norm for layer in layers_of(model) for norm in (layer.attention_norm, layer.ffn_norm)]


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
