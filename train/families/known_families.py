"""Where a model of a supported family keeps its attention, FFN, residual sums and norms.

A family is data (:mod:`train.families.family`, :mod:`train.families.layouts`): paths of modules inside one layer, and for each named
tensor the module and the side where it passes. Code elsewhere asks the functions below and knows no family by name, so a
new one is a new :class:`Family` as long as its attention goes through transformers' attention interface and forwards
unknown keywords.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from train.families.family import MEASURED_KINDS, TENSOR_KINDS, Family, TensorKind, TensorPlace
from train.families.layouts import FAMILIES

__all__ = [
    "FAMILIES",
    "MEASURED_KINDS",
    "TENSOR_KINDS",
    "Family",
    "LayerModules",
    "Projection",
    "TensorKind",
    "TensorPlace",
    "embedding_norm_of",
    "family_of",
    "family_of_config",
    "family_of_type",
    "final_norm_of",
    "hidden_size_of",
    "layers_of",
    "norms_of",
    "num_heads_of",
    "patch_norm_of",
    "supported_model_types",
]


PATCH_NORM_NAME = "patch_norm"
"""The norm after the patch embedding, as a submodule of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Projection:
    """Query, key or value projection: a linear layer, or some rows of one that projects all three."""

    linear: nn.Linear
    rows: slice
    """Which output features, as rows of the weight."""

    @property
    def weight(self) -> torch.Tensor:
        """(rows, in_features); a view of the parameter, so changing it in place under ``no_grad`` changes the layer."""
        return self.linear.weight[self.rows]

    @property
    def bias(self) -> torch.Tensor | None:
        """(rows,); a view as ``weight`` is; ``None`` where the layer has none."""
        bias: torch.Tensor | None = self.linear.bias
        return None if bias is None else bias[self.rows]


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerModules:
    """The modules of one layer."""

    layer: nn.Module
    attention: nn.Module
    query: Projection
    key: Projection
    value: Projection
    output_projection: nn.Linear
    ffn_in: tuple[nn.Linear, ...]
    ffn_out: nn.Linear
    attention_norm: nn.Module
    ffn_norm: nn.Module

    @property
    def linears(self) -> tuple[nn.Linear, ...]:
        """Every linear layer once, in the order in which data passes; a projection of all three is one."""
        projections = (self.query.linear, self.key.linear, self.value.linear)
        return (*dict.fromkeys(projections), self.output_projection, *self.ffn_in, self.ffn_out)


def supported_model_types() -> tuple[str, ...]:
    """Every ``model_type`` that some family covers."""
    return tuple(dict.fromkeys(model_type for family in FAMILIES for model_type in family.model_types))


def family_of_type(model_type: str) -> Family:
    """First family that covers a config's ``model_type``; :func:`family_of_config` tells its layouts apart.

    Raises:
        ValueError: no family covers it.
    """
    for family in FAMILIES:
        if model_type in family.model_types:
            return family
    raise ValueError(
        f"model type '{model_type}' is not supported: its block layout is not described in train/families/layouts.py; "
        f"supported are {', '.join(supported_model_types())}"
    )


def family_of_config(config: Any) -> Family:
    """Family of a transformers config.

    Raises:
        ValueError: no family covers its model type, or none of those that do has its layout.
    """
    known = family_of_type(config.model_type)
    candidates = [family for family in FAMILIES if config.model_type in family.model_types]
    for family in candidates:
        if all(getattr(config, name, None) == value for name, value in family.config_values.items()):
            return family
    values = ", ".join(f"{name} = {getattr(config, name, None)!r}" for name in known.config_values)
    raise ValueError(
        f"no layout of model type '{config.model_type}' has {values}; known are "
        + ", ".join(f"{family.name} ({dict(family.config_values)})" for family in candidates)
    )


def family_of(model: PreTrainedModel) -> Family:
    """Family of a model; raises as :func:`family_of_config`."""
    return family_of_config(model.config)


def layers_of(model: PreTrainedModel) -> list[LayerModules]:
    """The modules of every layer, first layer first.

    Raises:
        ValueError: as :func:`family_of_config`, or the model has no layer.
    """
    family = family_of(model)
    layers = model.base_model.get_submodule(family.layers)
    assert isinstance(layers, (nn.ModuleList, nn.Sequential))
    if not len(layers):
        raise ValueError(f"this '{model.config.model_type}' model has no layers; expected at least one")
    return [_modules_of(layer, family) for layer in layers]


def _modules_of(layer: nn.Module, family: Family) -> LayerModules:
    query, key, value = _projections(layer, (family.query, family.key, family.value))
    return LayerModules(
        layer=layer,
        attention=layer.get_submodule(family.attention),
        query=query,
        key=key,
        value=value,
        output_projection=_linear(layer, family.output_projection),
        ffn_in=tuple(_linear(layer, path) for path in family.ffn_in),
        ffn_out=_linear(layer, family.ffn_out),
        attention_norm=layer.get_submodule(family.attention_norm),
        ffn_norm=layer.get_submodule(family.ffn_norm),
    )


def num_heads_of(model: PreTrainedModel) -> int:
    """Heads of queries in each layer, by the config or, where it does not say, by the first attention module."""
    counted = getattr(model.config, "num_attention_heads", None) or layers_of(model)[0].attention.num_heads
    assert isinstance(counted, int)
    return counted


def hidden_size_of(model: PreTrainedModel) -> int:
    """Features of the hidden state; raises as :func:`family_of_config`."""
    return layers_of(model)[0].query.linear.in_features


def embedding_norm_of(model: PreTrainedModel) -> nn.Module | None:
    """The norm of the embedding sum, where the model has one; raises as :func:`family_of_config`."""
    return _norm_if_any(model, family_of(model).embedding_norm)


def final_norm_of(model: PreTrainedModel) -> nn.Module | None:
    """The norm after the last layer, where the model has one; raises as :func:`family_of_config`."""
    return _norm_if_any(model, family_of(model).final_norm)


def patch_norm_of(model: PreTrainedModel) -> nn.Module | None:
    """The norm after the patch embedding, which :mod:`train.conversion.patch_norm` adds; raises as :func:`family_of_config`."""
    path = family_of(model).patch_embedding
    return None if path is None else _norm_if_any(model, f"{path}.{PATCH_NORM_NAME}")


def norms_of(model: PreTrainedModel) -> list[nn.Module]:
    """Every LayerNorm and RMSNorm of embeddings, layers and end, in the order in which data passes each block."""
    norms = [patch_norm_of(model), embedding_norm_of(model)]
    for layer in layers_of(model):
        norms += [layer.attention_norm, layer.ffn_norm]
    norms.append(final_norm_of(model))
    return [norm for norm in norms if norm is not None]


def _norm_if_any(model: PreTrainedModel, path: str | None) -> nn.Module | None:
    if path is None:
        return None
    parent, _, name = path.rpartition(".")
    norm = getattr(model.base_model.get_submodule(parent), name, None)
    assert norm is None or isinstance(norm, nn.Module)
    return None if isinstance(norm, nn.Identity) else norm


def _projections(layer: nn.Module, paths: tuple[str, str, str]) -> tuple[Projection, Projection, Projection]:
    if len(set(paths)) > 1:
        query, key, value = (_linear(layer, path) for path in paths)
        return _whole(query), _whole(key), _whole(value)
    linear = _linear(layer, paths[0])
    size = linear.out_features // 3
    assert size * 3 == linear.out_features
    query_rows, key_rows, value_rows = (slice(size * part, size * (part + 1)) for part in range(3))
    return (
        Projection(linear=linear, rows=query_rows),
        Projection(linear=linear, rows=key_rows),
        Projection(linear=linear, rows=value_rows),
    )


def _whole(linear: nn.Linear) -> Projection:
    return Projection(linear=linear, rows=slice(0, linear.out_features))


def _linear(parent: nn.Module, path: str) -> nn.Linear:
    module = parent.get_submodule(path)
    assert isinstance(module, nn.Linear)
    return module
