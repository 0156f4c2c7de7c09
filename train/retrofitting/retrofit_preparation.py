"""What a retrofit does to the student's tensors before and after it learns; each step is a setting, and each can be left out.

Before: a stored prefix, a rotated residual stream, moved scales. They leave what is computed as it was (behind the prefix's tokens), but bring it
into a form that one scale per tensor suffices for. After: weights are rounded so that their errors cancel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from transformers import PreTrainedModel

from train.conversion.prefix_tokens import store_prefix, try_prefixes
from train.retrofitting.retrofit_settings import RetrofitSettings
from train.weights.equalization import equalize
from train.weights.rotation import rotate
from train.weights.weight_rounding import round_weights

SEARCH = "search"
"""Value of ``prefix``: the best of :data:`CANDIDATES`."""
CANDIDATES = ("\n", ".\n", "\n\n", ". ")
"""What ends a line or a sentence: tokens that carry little, which a decoder makes a sink of."""

Encode = Callable[[str], Sequence[int]]
"""A text's ids, without special tokens."""


def prepare(
    student: PreTrainedModel,
    settings: RetrofitSettings,
    batches: Sequence[Mapping[str, torch.Tensor]],
    *,
    encode: Encode,
    tell: Callable[[str], None],
) -> dict[str, object]:
    """Do what comes before learning, in place.

    Args:
        student: converted, in evaluation mode.
        settings: says what.
        batches: keyword inputs of forward passes, on the student's device.
        encode: for a prefix given as text.
        tell: is told what is being done.

    Returns:
        What was chosen, as JSON values.

    Raises:
        ValueError: the student's family cannot have it, or the prefix has no tokens; see the modules of each step.
    """
    chosen: dict[str, object] = {}
    if settings.prefix:
        tell("storing a prefix")
        token_ids, trials = _prefix_tokens(student, settings.prefix, batches, encode)
        store_prefix(student, token_ids)
        chosen["prefix"] = list(token_ids)
        if trials:
            chosen["prefix_trials"] = trials
    if settings.rotate:
        tell("rotating the residual stream")
        rotate(student, seed=settings.seed)
        chosen["rotate"] = True
    if settings.equalize:
        tell("moving scales between tensors")
        chosen["equalize"] = {name: choice.candidate for name, choice in equalize(student, batches).items()}
    return chosen


def finish(
    student: PreTrainedModel,
    settings: RetrofitSettings,
    batches: Sequence[Mapping[str, torch.Tensor]],
    *,
    tell: Callable[[str], None],
) -> dict[str, object]:
    """Do what comes after learning, in place; arguments, result and errors as of :func:`prepare`."""
    if not settings.round_weights:
        return {}
    tell("rounding weights")
    rounded = round_weights(student, batches, bits=settings.weight_bits)
    errors = {name: {"nearest": weight.nearest, "rounded": weight.compensated} for name, weight in rounded.items()}
    return {"round_weights": errors}


def _prefix_tokens(
    student: PreTrainedModel,
    prefix: str | tuple[int, ...],
    batches: Sequence[Mapping[str, torch.Tensor]],
    encode: Encode,
) -> tuple[tuple[int, ...], list[dict[str, object]]]:
    """Ids, and what each candidate of a search came to."""
    if not isinstance(prefix, str):
        return prefix, []
    if prefix != SEARCH:
        return tuple(encode(prefix)), []
    candidates = dict.fromkeys(tuple(encode(text)) for text in CANDIDATES)
    trials = try_prefixes(student, [ids for ids in candidates if ids], batches)
    if not trials:
        raise ValueError("the tokenizer has no tokens for any text that a prefix is searched among; give ids")
    return trials[0].token_ids, [{"token_ids": list(trial.token_ids), "largest": trial.largest} for trial in trials]
