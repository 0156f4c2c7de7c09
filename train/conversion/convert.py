"""Turn a Hugging Face model into one whose attention follows :class:`AttentionSettings`, in place.

The settings are written to ``model.config.quietformer``, so they travel with the checkpoint. Gates start at
``gate_init``; with ``gate_scale = 1 / gate_init`` their product is exactly 1 and the outputs of a pretrained model
do not change.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from transformers import PreTrainedModel

from train.attention.gates import build_gate
from train.attention.quiet_attention import ATTENTION_NAME, attach_attention, register_attention
from train.attention.settings import AttentionSettings
from train.attention.stored_prefix import PREFIX_NAME, Prefix, number_from_first_token
from train.attention.timm_attention import replace_attention_
from train.conversion.patch_norm import add_patch_norm_
from train.families.known_families import LayerModules, family_of, family_of_config, layers_of, num_heads_of

CONFIG_KEY = "quietformer"


def convert(model: PreTrainedModel, settings: AttentionSettings, *, seed: int = 0) -> None:
    """Give every attention layer of ``model`` the softmax and gate of ``settings``, in place.

    Args:
        model: of a supported family, with or without a task head, on any device, in any floating dtype; as it came, or converted
            with vanilla attention, as a vanilla model from scratch is. Its norm after the patch embedding stays.
        settings: what the attention is to do; vanilla settings are allowed and recorded too.
        seed: draws the hidden weights of ``mlp`` gates.

    Raises:
        ValueError: the family is not supported or the model has what :func:`check_convertible` refuses, it has no rotary
            positions for a prefix, the gate cannot read its heads' own features, or it has other attention than vanilla already.
    """
    earlier = settings_of(model)
    if earlier is None:
        attach_settings(model, settings, seed=seed)
    else:
        if not replace(earlier, patch_norm=False).is_vanilla:
            prefix = f", prefix of {earlier.prefix}" if earlier.prefix else ""
            raise ValueError(
                f"the model is already converted (softmax '{earlier.softmax}', gate '{earlier.gate}'{prefix}); convert the original"
            )
        if settings.patch_norm and not earlier.patch_norm:
            add_patch_norm_(model)
        settings = replace(settings, patch_norm=settings.patch_norm or earlier.patch_norm)
        _attach_to_layers(model, settings, seed=seed)
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
    _attach_to_layers(model, settings, seed=seed)
    model.set_attn_implementation(ATTENTION_NAME)


def _attach_to_layers(model: PreTrainedModel, settings: AttentionSettings, *, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    layers = layers_of(model)
    _check_gate(settings, layers[0])
    for layer in layers:
        gate = build_gate(
            settings,
            num_heads=num_heads_of(model),
            hidden_size=layer.query.linear.in_features,
            generator=generator,
        )
        if gate is not None:
            gate.to(device=layer.query.linear.weight.device, dtype=layer.query.linear.weight.dtype)
        attach_attention(layer.attention, settings, gate)
    if settings.prefix:
        attach_prefix(model, length=settings.prefix)


def attach_prefix(model: PreTrainedModel, *, length: int) -> None:
    """Give every layer an empty prefix, in place; without recording it.

    Args:
        model: of a supported family.
        length: stored keys.

    Raises:
        ValueError: as :func:`check_rotary`.
    """
    check_rotary(model)
    num_heads = getattr(model.config, "num_key_value_heads", None) or num_heads_of(model)
    for layer in layers_of(model):
        weight = layer.key.weight
        prefix = Prefix(length=length, num_heads=num_heads, head_size=len(weight) // num_heads)
        layer.attention.add_module(PREFIX_NAME, prefix.to(device=weight.device, dtype=weight.dtype))
    number_from_first_token(model.base_model)


def check_rotary(model: PreTrainedModel) -> None:
    """Refuse a family in which stored keys would not stand for earlier tokens.

    Raises:
        ValueError: its positions are not rotary.
    """
    family = family_of(model)
    if not family.rotary:
        raise ValueError(
            f"a prefix takes a model with rotary positions, of which only differences matter; family '{family.name}' "
            "has others"
        )


def check_convertible(config: Any) -> None:
    """Refuse what the attention function cannot serve.

    Args:
        config: a transformers config.

    Raises:
        ValueError: the family is not supported; the model is a decoder of an encoder family or an encoder of a causal
            one; it has cross attention, positions that enter the scores, or windows of attention.
    """
    family = family_of_config(config)
    this = f"this '{config.model_type}' model"
    if not family.causal and getattr(config, "is_decoder", False):
        raise ValueError(f"{this} is a decoder (is_decoder); family '{family.name}' takes encoders")
    if family.causal and not getattr(config, "is_causal", True):
        raise ValueError(f"{this} attends both ways (is_causal is false); family '{family.name}' takes causal models")
    if getattr(config, "add_cross_attention", False) or getattr(config, "is_encoder_decoder", False):
        raise ValueError(f"{this} has cross attention; family '{family.name}' takes models that attend to themselves")
    positions = getattr(config, "position_embedding_type", None) or "absolute"
    if positions != "absolute":
        raise ValueError(
            f"position_embedding_type is '{positions}', which changes the scores; only 'absolute' is supported"
        )
    if window := _window_of(config):
        raise ValueError(f"{this} attends within windows ({window}); only attention to all earlier tokens is supported")


def _window_of(config: Any) -> str | None:
    """The config's value that limits attention to a window, for a message."""
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if kinds:
        return f"layer_types has '{min(kinds)}'"
    window = getattr(config, "sliding_window", None)
    if window is not None and getattr(config, "use_sliding_window", True):
        return f"sliding_window is {window}"
    return None


def _check_gate(settings: AttentionSettings, layer: LayerModules) -> None:
    """Refuse gates whose heads read their own features where the hidden state is not as wide as all heads together."""
    hidden_size, query_size = layer.query.linear.in_features, len(layer.query.weight)
    if settings.gate in ("linear", "mlp") and hidden_size != query_size:
        raise ValueError(
            f"gate '{settings.gate}' gives each head its own slice of the hidden state, but that has {hidden_size} "
            f"features and all heads together {query_size}; use gate = 'all_heads_linear', which reads all features"
        )
