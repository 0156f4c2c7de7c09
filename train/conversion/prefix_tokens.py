"""A prefix made of tokens: what a pretrained decoder would keep of them, stored in front of every sequence.

Which tokens matters. In SmolLM2-135M ``<|im_start|>`` alone leaves the sink at the first real token; a line break takes the place
of the first token's sink, but one word in thousands still becomes another; a full stop and a line break take both places, after which the
largest hidden state on real tokens falls from 25,000 to 1,200. So candidates are tried on real texts.

Shapes: P stored keys, G heads of keys and values, d features of a head.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from transformers import PreTrainedModel

from train.attention.stored_prefix import Prefix, prefix_of
from train.conversion.convert import CONFIG_KEY, attach_prefix, check_rotary, settings_of
from train.families.known_families import layers_of
from train.observation.named_tensors import named_tensors

_MOST_TOKENS = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefixTrial:
    """What a candidate makes of the texts that it was tried on."""

    token_ids: tuple[int, ...]
    """Of the prefix; empty: none."""
    largest: float
    """Largest magnitude of the residual stream, over all layers and real tokens."""


@torch.no_grad()
def store_prefix(model: PreTrainedModel, token_ids: Sequence[int]) -> None:
    """Store keys and values of ``token_ids`` in front of every sequence, in place.

    The model then computes for a text what it did for the prefix and the text together, without the prefix's outputs. The settings
    in its config get ``prefix`` = P.

    Args:
        model: converted, in evaluation mode, of a causal family with rotary positions, without a prefix.
        token_ids: 1 to 64 ids.

    Raises:
        ValueError: the family has no rotary positions, the model is not converted or has a prefix, or an id is not in its
            vocabulary.
    """
    settings = settings_of(model)
    if settings is None:
        raise ValueError(
            "the model is not converted; train.conversion.convert.convert it first (vanilla settings change nothing)"
        )
    if settings.prefix:
        raise ValueError(f"the model already has a prefix of {settings.prefix}; store another one in the original")
    check_rotary(model)
    vocabulary = model.config.vocab_size
    if not 0 < len(token_ids) <= _MOST_TOKENS or not all(0 <= token < vocabulary for token in token_ids):
        raise ValueError(
            f"prefix tokens are {list(token_ids)}; expected 1 to {_MOST_TOKENS} ids from 0 to {vocabulary - 1}"
        )
    device = next(model.parameters()).device
    ids_1P = torch.tensor([list(token_ids)], device=device)
    positions_1P = torch.arange(-len(token_ids), 0, device=device)[None]
    # By position: the output's name for its cache depends on the version of transformers.
    _, cache, *_ = model.base_model(input_ids=ids_1P, position_ids=positions_1P, use_cache=True, return_dict=False)
    states = [(layer.keys[0].clone(), layer.values[0].clone()) for layer in cache.layers]
    settings = replace(settings, prefix=len(token_ids))
    attach_prefix(model, length=settings.prefix)
    for layer, (key_GPd, value_GPd) in zip(layers_of(model), states, strict=True):
        layer.attention.quiet_settings = settings  # type: ignore[assignment]
        prefix = prefix_of(layer.attention)
        assert isinstance(prefix, Prefix)
        prefix.key.copy_(key_GPd)
        prefix.value.copy_(value_GPd)
    setattr(model.config, CONFIG_KEY, settings.to_dict())


def try_prefixes(
    model: PreTrainedModel, candidates: Iterable[Sequence[int]], batches: Sequence[Mapping[str, torch.Tensor]]
) -> list[PrefixTrial]:
    """Run ``batches`` behind each candidate; the model is left as it was.

    Args:
        model: as for :func:`store_prefix`.
        candidates: token ids; an empty one measures the model without a prefix.
        batches: keyword inputs of forward passes, on the model's device.

    Returns:
        One trial per candidate, least magnitude first.

    Raises:
        ValueError: as of :func:`store_prefix`.
    """
    trials = []
    for token_ids in candidates:
        if token_ids:
            store_prefix(model, token_ids)
        try:
            trials.append(PrefixTrial(token_ids=tuple(token_ids), largest=_largest_in_stream(model, batches)))
        finally:
            if token_ids:
                _remove_prefix(model)
    return sorted(trials, key=lambda trial: trial.largest)


def _remove_prefix(model: PreTrainedModel) -> None:
    settings = settings_of(model)
    assert settings is not None
    settings = replace(settings, prefix=0)
    for layer in layers_of(model):
        del layer.attention.prefix
        layer.attention.quiet_settings = settings  # type: ignore[assignment]
    setattr(model.config, CONFIG_KEY, settings.to_dict())


@torch.no_grad()
def _largest_in_stream(model: PreTrainedModel, batches: Sequence[Mapping[str, torch.Tensor]]) -> float:
    largest = 0.0
    with named_tensors(model, kinds=("residual_sum.ffn",)) as tensors:
        for batch in batches:
            model.base_model(**batch)
            for x_BTD in tensors.values():
                token_BT = x_BTD.abs().amax(dim=-1)
                if "attention_mask" in batch:
                    token_BT = token_BT * batch["attention_mask"]
                largest = max(largest, float(token_BT.max()))
    return largest
