"""Models from scratch: an architecture by name, the values of its config, and the head that a task needs.

Architectures are transformers' ``model_type`` values; that a family can be converted is :mod:`train.conversion.convert`'s to say. Values are
checked against the config class, which would swallow a misspelt one silently.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal, cast

import torch
from transformers import CONFIG_MAPPING, PreTrainedConfig, PreTrainedModel, TimmWrapperConfig
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
)

from train.attention.settings import AttentionSettings
from train.attention.timm_attention import require_timm
from train.conversion.convert import check_convertible, convert
from train.families.known_families import family_of_config

TaskHead = Literal["masked-lm", "causal-lm", "image-classification", "text-classification"]

_TIMM_PREFIX = "timm:"

_HEADS: dict[TaskHead, Mapping[Any, Any]] = {
    "masked-lm": MODEL_FOR_MASKED_LM_MAPPING,
    "causal-lm": MODEL_FOR_CAUSAL_LM_MAPPING,
    "image-classification": MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
    "text-classification": MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelDescription:
    """A model that does not exist yet."""

    architecture: str
    """``bert``, ``opt``, ``vit``, ``llama``, ...; or ``timm:NAME`` for a Vision Transformer of timm."""
    config: Mapping[str, Any]
    """Values of its config class, or ``num_labels`` and arguments of timm's model; defaults stand for the others."""
    head: TaskHead


def build_model(description: ModelDescription, settings: AttentionSettings, *, seed: int) -> PreTrainedModel:
    """A converted model with fresh weights, in training mode, on torch's default device (``meta`` included).

    Args:
        description: what to build.
        settings: of its attention.
        seed: of the weights; the caller's generator is left alone.

    Raises:
        ValueError: the architecture or a value is unknown, the values do not fit together, the architecture has no such head, or it
            cannot be converted.
        ImportError: the architecture is timm's, which is not installed.
    """
    config = build_config(description)
    check_convertible(config)
    model_class = _model_class(description, config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            model = model_class(config)
        except Exception as error:  # a value that does not fit fails wherever the library first uses it
            raise ValueError(f"architecture '{description.architecture}' cannot be built: {error}") from error
    convert(model, settings, seed=seed)
    return model


def _model_class(description: ModelDescription, config: PreTrainedConfig) -> type[PreTrainedModel]:
    """The model with the head that the task needs, whose mask lets a token see what the task allows it to see."""
    name, head = description.architecture, description.head
    if type(config) not in _HEADS[head]:
        others = ", ".join(known for known, models in _HEADS.items() if type(config) in models)
        raise ValueError(f"architecture '{name}' has no {head} head; transformers gives it {others or 'none'}")
    causal = family_of_config(config).causal
    if head == "causal-lm" and not causal:
        raise ValueError(
            f"architecture '{name}' sees the tokens it is to predict; a causal-lm head needs a causal model, such as opt"
        )
    if head == "masked-lm" and causal:
        raise ValueError(
            f"architecture '{name}' sees only what is before a token; a masked-lm head needs an encoder, such as bert"
        )
    return cast("type[PreTrainedModel]", _HEADS[head][type(config)])


def build_config(description: ModelDescription) -> PreTrainedConfig:
    """The config of a description; raises as :func:`build_model`."""
    name = description.architecture
    if name.startswith(_TIMM_PREFIX):
        require_timm()
        return _timm_config(name.removeprefix(_TIMM_PREFIX), description.config)
    if name not in CONFIG_MAPPING:
        close = difflib.get_close_matches(name, list(CONFIG_MAPPING), n=1)
        raise ValueError(f"unknown architecture '{name}'" + (f"; did you mean '{close[0]}'?" if close else ""))
    config_class = CONFIG_MAPPING[name]
    assert is_dataclass(config_class)
    known = {field.name for field in fields(config_class)} | {"num_labels"}
    if unknown := sorted(set(description.config) - known):
        close = difflib.get_close_matches(unknown[0], known, n=1)
        hint = f"did you mean '{close[0]}'?" if close else f"known are {', '.join(sorted(known))}"
        raise ValueError(f"architecture '{name}' has no '{unknown[0]}'; {hint}")
    try:
        return config_class(**description.config)
    except Exception as error:  # the library's own checks, of any type
        raise ValueError(f"config of architecture '{name}': {' '.join(str(error).split())}") from error


def _timm_config(name: str, values: Mapping[str, Any]) -> PreTrainedConfig:
    arguments = {key: value for key, value in values.items() if key != "num_labels"}
    config = TimmWrapperConfig(architecture=name, model_args=arguments)
    num_labels = values.get("num_labels", 1000)
    if type(num_labels) is not int or num_labels < 1:
        raise ValueError(
            f"architecture 'timm:{name}': num_labels is {num_labels!r}; expected a whole number of at least 1"
        )
    config.num_labels = num_labels
    return config
