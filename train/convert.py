"""Turn a Hugging Face model into one whose attention follows :class:`AttentionSettings`, in place.

The settings are written to ``model.config.quietformer``, so they travel with the checkpoint. Gates start at
``gate_init``; with ``gate_scale = 1 / gate_init`` their product is exactly 1 and the outputs of a pretrained model
do not change.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel

from train.attention import ATTENTION_NAME, attach_attention, register_attention
from train.families import family_of, family_of_config, layers_of, num_heads_of
from train.gates import build_gate
from train.patch_norm import add_patch_norm_
from train.settings import AttentionSettings
from train.timm_attention import replace_attention_

CONFIG_KEY = "quietformer"


def convert(model: PreTrainedModel, settings: AttentionSettings, *, seed: int = 0) -> None:
    """Give every attention layer of ``model`` the softmax and gate of ``settings``, in place.

    Args:
        model: an encoder of a supported family, with or without a task head, on any device, in any floating dtype.
        settings: what the attention is to do; vanilla settings are allowed and recorded too.
        seed: draws the hidden weights of ``mlp`` gates.

    Raises:
        ValueError: the family is not supported, the model is a decoder or has cross attention, its positions enter the
            scores, or it has been converted before.
    """
    if (earlier := settings_of(model)) is not None:
        raise ValueError(
            f"the model is already converted (softmax '{earlier.softmax}', gate '{earlier.gate}'); convert the original"
        )
    attach_settings(model, settings, seed=seed)
    setattr(model.config, CONFIG_KEY, settings.to_dict())


def settings_of(model: PreTrainedModel) -> AttentionSettings | None:
    """Settings recorded in the model's config, ``None`` for a model that was never converted.

    Raises:
        ValueError: what is recorded is not a set of attention settings.
    """
    return settings_in_config(model.config)


def settings_in_config(config: Any) -> AttentionSettings | None:
    """As :func:`settings_of`, from the config alone."""
    recorded = getattr(config, CONFIG_KEY, None)
    if recorded is None:
        return None
    if not isinstance(recorded, dict):
        message = f"'{CONFIG_KEY}' in the config is {recorded!r}; expected a table of attention settings"
        raise ValueError(message)  # noqa: TRY004 (a user's file, not a caller's argument)
    try:
        return AttentionSettings.from_dict(recorded)
    except (TypeError, ValueError) as error:
        raise ValueError(f"attention settings in the config: {error}") from error


def attach_settings(model: PreTrainedModel, settings: AttentionSettings, *, seed: int = 0) -> None:
    """As :func:`convert` without recording the settings or minding earlier ones: what loading a checkpoint needs."""
    check_convertible(model.config)
    register_attention()
    if family_of(model).replaced_attention == "timm":
        replace_attention_(model)
    if settings.patch_norm:
        add_patch_norm_(model)
    generator = torch.Generator().manual_seed(seed)
    for layer in layers_of(model):
        gate = build_gate(
            settings,
            num_heads=num_heads_of(model),
            hidden_size=layer.query.linear.in_features,
            generator=generator,
        )
        if gate is not None:
            gate.to(device=layer.query.linear.weight.device, dtype=layer.query.linear.weight.dtype)
        attach_attention(layer.attention, settings, gate)
    model.set_attn_implementation(ATTENTION_NAME)


def check_convertible(config: Any) -> None:
    """Refuse what the attention function cannot serve.

    Args:
        config: a transformers config.

    Raises:
        ValueError: see :func:`convert`.
    """
    family = family_of_config(config)
    if getattr(config, "is_decoder", False):
        raise ValueError(
            f"this '{config.model_type}' model is a decoder (is_decoder); family '{family.name}' takes encoders"
        )
    if getattr(config, "add_cross_attention", False):
        raise ValueError(
            f"this '{config.model_type}' model has cross attention; family '{family.name}' takes encoders alone"
        )
    positions = getattr(config, "position_embedding_type", None) or "absolute"
    if positions != "absolute":
        raise ValueError(
            f"position_embedding_type is '{positions}', which changes the scores; only 'absolute' is supported"
        )
