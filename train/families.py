"""Where each supported family keeps its attention, FFN, residual sums and LayerNorms.

A family is data: paths of modules inside one layer, and for each named tensor the module and the side (input or
output) where it passes. Code elsewhere asks the functions below and knows no family by name, so a new one is a new
:class:`Family` as long as its attention goes through transformers' attention interface and forwards unknown
keywords.

Named tensors of a layer (``TensorKind``): ``attention_output`` and ``ffn_output`` are what the two output
projections write, before dropout; ``residual_sum.*`` are the sums of these with the stream; ``ln_output.*`` what the
LayerNorms make of the stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from torch import nn
from transformers import PreTrainedModel

TensorKind = Literal[
    "attention_output",
    "ffn_output",
    "residual_sum.attention",
    "residual_sum.ffn",
    "ln_output.attention",
    "ln_output.ffn",
    "embedding_sum",
    "embedding_ln_output",
]
TENSOR_KINDS: tuple[TensorKind, ...] = get_args(TensorKind)


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorPlace:
    """A tensor that is the first input or the output of a module."""

    path: str
    """Path of the module from the layer (or from the base model, for embeddings); empty for the layer itself."""
    side: Literal["input", "output"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """Module paths of one block layout; layer paths are relative to one element of ``layers``."""

    name: str
    model_types: tuple[str, ...]
    """``config.model_type`` values that share the layout."""
    layers: str
    """Path of the list of layers from the base model."""
    attention: str
    """Module that calls the attention interface; its first argument is the block's hidden state."""
    query: str
    key: str
    value: str
    output_projection: str
    ffn_in: str
    ffn_out: str
    attention_norm: str
    ffn_norm: str
    embedding_norm: str
    """Path from the base model."""
    layer_tensors: dict[TensorKind, TensorPlace]
    embedding_tensors: dict[TensorKind, TensorPlace]


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerModules:
    """The modules of one layer."""

    layer: nn.Module
    attention: nn.Module
    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    output_projection: nn.Linear
    ffn_in: nn.Linear
    ffn_out: nn.Linear
    attention_norm: nn.LayerNorm
    ffn_norm: nn.LayerNorm


_BERT = Family(
    name="bert",
    model_types=("bert", "roberta", "xlm-roberta", "camembert", "electra"),
    layers="encoder.layer",
    attention="attention.self",
    query="attention.self.query",
    key="attention.self.key",
    value="attention.self.value",
    output_projection="attention.output.dense",
    ffn_in="intermediate.dense",
    ffn_out="output.dense",
    attention_norm="attention.output.LayerNorm",
    ffn_norm="output.LayerNorm",
    embedding_norm="embeddings.LayerNorm",
    layer_tensors={
        "attention_output": TensorPlace(path="attention.output.dense", side="output"),
        "residual_sum.attention": TensorPlace(path="attention.output.LayerNorm", side="input"),
        "ln_output.attention": TensorPlace(path="attention.output.LayerNorm", side="output"),
        "ffn_output": TensorPlace(path="output.dense", side="output"),
        "residual_sum.ffn": TensorPlace(path="output.LayerNorm", side="input"),
        "ln_output.ffn": TensorPlace(path="output.LayerNorm", side="output"),
    },
    embedding_tensors={
        "embedding_sum": TensorPlace(path="embeddings.LayerNorm", side="input"),
        "embedding_ln_output": TensorPlace(path="embeddings.LayerNorm", side="output"),
    },
)

FAMILIES: tuple[Family, ...] = (_BERT,)


def supported_model_types() -> tuple[str, ...]:
    """Every ``model_type`` that some family covers."""
    return tuple(model_type for family in FAMILIES for model_type in family.model_types)


def family_of_type(model_type: str) -> Family:
    """Family of a config's ``model_type``.

    Raises:
        ValueError: no family covers it.
    """
    for family in FAMILIES:
        if model_type in family.model_types:
            return family
    raise ValueError(
        f"model type '{model_type}' is not supported: its block layout is not described in train/families.py; "
        f"supported are {', '.join(supported_model_types())}"
    )


def family_of(model: PreTrainedModel) -> Family:
    """Family of a model; raises as :func:`family_of_type`."""
    return family_of_type(model.config.model_type)


def layers_of(model: PreTrainedModel) -> list[LayerModules]:
    """The modules of every layer, first layer first; raises as :func:`family_of_type`."""
    family = family_of(model)
    layers = model.base_model.get_submodule(family.layers)
    assert isinstance(layers, nn.ModuleList)
    return [
        LayerModules(
            layer=layer,
            attention=layer.get_submodule(family.attention),
            query=_linear(layer, family.query),
            key=_linear(layer, family.key),
            value=_linear(layer, family.value),
            output_projection=_linear(layer, family.output_projection),
            ffn_in=_linear(layer, family.ffn_in),
            ffn_out=_linear(layer, family.ffn_out),
            attention_norm=_layer_norm(layer, family.attention_norm),
            ffn_norm=_layer_norm(layer, family.ffn_norm),
        )
        for layer in layers
    ]


def embedding_norm_of(model: PreTrainedModel) -> nn.LayerNorm:
    """The LayerNorm after the embedding sum; raises as :func:`family_of_type`."""
    return _layer_norm(model.base_model, family_of(model).embedding_norm)


def _linear(parent: nn.Module, path: str) -> nn.Linear:
    module = parent.get_submodule(path)
    assert isinstance(module, nn.Linear)
    return module


def _layer_norm(parent: nn.Module, path: str) -> nn.LayerNorm:
    module = parent.get_submodule(path)
    assert isinstance(module, nn.LayerNorm)
    return module
