"""A copy of a model whose attention is written with standard operators and whose constant factors live in weights.

What is folded, all exact up to float rounding:

- ``1/sqrt(d)`` into the query projection, weight and bias, in both lowerings; rotary positions turn the queries after
  that and commute with a factor;
- ``folded`` only: the factor ``1 - gamma`` of clipped softmax with zeta = 1 into the value projection, weight and bias, and stored values
  (``sum_j (1 - gamma) relu(p_j - t) v_j = sum_j relu(p_j - t) ((1 - gamma) v_j)``);
- ``folded`` only: the gate's scale into the weight of the output projection, not its bias, which the gate never scales.

``literal`` writes clip and scale out as they are defined. Clipped softmax with zeta > 1, whose upper clip can bind before
the factor is applied, and clipped softmax with a gamma per row have no exact short form and are literal in both.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Literal

import torch
from transformers import AttentionInterface, PreTrainedModel

from export.lowered_attention import (
    Context,
    LoweredGate,
    Scores,
    folds_clip,
    lowered_attention,
    lowered_probabilities,
)
from train.attention.gates import Gate
from train.attention.settings import AttentionSettings
from train.attention.stored_prefix import prefix_of
from train.conversion.convert import settings_of
from train.families.known_families import LayerModules, Projection, family_of, layers_of

Lowering = Literal["folded", "literal"]
LOWERINGS: tuple[Lowering, ...] = ("folded", "literal")
LOWERED_ATTENTION_NAME = "quietformer-lowered"


@dataclass(frozen=True, kw_only=True, slots=True)
class LoweredModel:
    """A model ready to be traced, and what its graph must contain."""

    model: PreTrainedModel
    settings: AttentionSettings
    lowering: Lowering
    masked: bool
    """Whether scores get a mask: images have no padding."""
    attention_paths: tuple[str, ...]
    """Module path of each layer's attention, first layer first; the graph's names begin with them."""


def lower(model: PreTrainedModel, *, lowering: Lowering) -> LoweredModel:
    """Lower a copy of ``model``; the model itself is not touched.

    Args:
        model: of a supported family, vanilla or converted, in float32, on the CPU, in evaluation mode.
        lowering: see the module's docstring.

    Raises:
        ValueError: the family is not supported, or ``lowering`` is not known.
    """
    if lowering not in LOWERINGS:
        raise ValueError(f"unknown lowering '{lowering}'; known are {', '.join(LOWERINGS)}")
    settings = settings_of(model) or AttentionSettings()
    lowered = copy.deepcopy(model)
    AttentionInterface.register(LOWERED_ATTENTION_NAME, lowered_attention)
    lowered.set_attn_implementation(LOWERED_ATTENTION_NAME)
    layers = layers_of(lowered)
    with torch.no_grad():
        for layer in layers:
            _lower_layer(layer, settings, fold=lowering == "folded")
    paths = {module: path for path, module in lowered.named_modules()}
    return LoweredModel(
        model=lowered,
        settings=settings,
        lowering=lowering,
        masked=family_of(model).inputs == "tokens",
        attention_paths=tuple(paths[layer.attention] for layer in layers),
    )


def undo_chunking(model: PreTrainedModel) -> None:
    """Compute every feed-forward block in one piece, in place.

    Chunks save memory and change no result, but a model with chunks takes only lengths that they divide.
    """
    for module in model.modules():
        if hasattr(module, "chunk_size_feed_forward"):
            setattr(module, "chunk_size_feed_forward", 0)  # noqa: B010  # nn.Module declares attributes as tensors


def _lower_layer(layer: LayerModules, settings: AttentionSettings, *, fold: bool) -> None:
    attention = layer.attention
    _scale(layer.query, float(attention.scaling))  # type: ignore[arg-type]
    attention.scaling = 1.0  # type: ignore[assignment]  # some families multiply the queries themselves
    if fold and folds_clip(settings):
        _scale(layer.value, 1.0 - settings.clip_gamma)
        if (prefix := prefix_of(attention)) is not None:
            prefix.value.mul_(1.0 - settings.clip_gamma)
    if settings.gate != "none":
        gate = attention.gate
        assert isinstance(gate, Gate)
        if fold:
            layer.output_projection.weight.mul_(gate.scale)
        attention.gate = LoweredGate(gate, fold_scale=fold)
    attention.scores = Scores()
    attention.probabilities = lowered_probabilities(settings, fold=fold)
    attention.context = Context()


def _scale(projection: Projection, factor: float) -> None:
    """Multiply what a projection puts out, in place."""
    projection.weight.mul_(factor)
    if projection.bias is not None:
        projection.bias.mul_(factor)
