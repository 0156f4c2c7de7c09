"""Fit the tensors of safetensors files into a model by name: every weight once, none left over, none made up."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import nn
from transformers import PreTrainedModel

from train.families.known_families import family_of

_LEGACY_NAMES = (
    (r"LayerNorm\.gamma$", "LayerNorm.weight"),
    (r"LayerNorm\.beta$", "LayerNorm.bias"),
)
"""Names that checkpoints converted from TensorFlow still carry."""
_UNREAD_NAMES = re.compile(
    r"(^|\.)(position_ids|token_type_ids|rotary_emb\.inv_freq)$|(^|\.)pooler\.|^cls\.seq_relationship\."
)
"""Buffers that models compute themselves, and the two heads of BERT's pretraining that task models leave out."""


def read_weights(files: Iterable[Path]) -> dict[str, torch.Tensor]:
    """All tensors of the given safetensors files by name.

    Raises:
        ValueError: a file is truncated or is not safetensors.
    """
    weights: dict[str, torch.Tensor] = {}
    for file in files:
        try:
            weights |= safetensors.torch.load_file(file)
        except safetensors.SafetensorError as error:
            raise ValueError(f"{file} is not a complete safetensors file: {error}") from error
    return weights


def fit_weights(
    model: PreTrainedModel, weights: dict[str, torch.Tensor], path: Path, *, task_weights_unread: bool
) -> None:
    """Copy every weight into the parameter or buffer of its name, in place.

    Names may carry the base model's prefix where the model has none, and the reverse. A weight tied to one that
    was read counts as read. A base model whose pooler is missing from the file loses its pooler: checkpoints of task
    models come without one.

    Args:
        model: floating-point model to fill.
        weights: tensors by name; floating ones are cast to the model's dtype.
        path: the checkpoint, for messages.
        task_weights_unread: weights outside the encoder may be left over, as when only the encoder is wanted.

    Raises:
        ValueError: a weight is missing, left over, quantized, not finite, of another shape than the config asks for, or
            stored twice with different values where the config ties two into one.
    """
    family, prefix = family_of(model), f"{model.base_model_prefix}."
    targets = model.state_dict(keep_vars=True)
    filled: dict[int, str] = {}
    left_over = []
    for name, tensor in weights.items():
        target = _target_of(name, targets, prefix, former_names=(*_LEGACY_NAMES, *family.former_names))
        if target is None:
            left_over.append(name)
            continue
        _check_fits(name, tensor, target, path)
        _check_tie(name, tensor, target, filled.get(id(target)), path)
        with torch.no_grad():
            target.copy_(tensor)
        filled[id(target)] = name

    missing = [name for name, target in targets.items() if id(target) not in filled]
    if missing and all(name.removeprefix(prefix).startswith("pooler.") for name in missing):
        _drop_pooler(model.base_model)
    elif missing:
        raise ValueError(f"{path} lacks {len(missing)} weights of {type(model).__name__}, the first is '{missing[0]}'")

    has_prefix = any(name.startswith(prefix) for name in weights)
    if task_weights_unread and has_prefix:
        left_over = [name for name in left_over if name.startswith(prefix)]
    if task_weights_unread:
        classifiers = tuple(f"{path}." for path in family.classifiers)
        left_over = [name for name in left_over if not name.removeprefix(prefix).startswith(classifiers)]
    if left_over := [name for name in left_over if not _UNREAD_NAMES.search(name)]:
        raise ValueError(
            f"{path} holds {len(left_over)} weights that {type(model).__name__} with its attention settings "
            f"does not have, the first is '{left_over[0]}'"
        )


def _target_of(
    name: str, targets: dict[str, torch.Tensor], prefix: str, *, former_names: Iterable[tuple[str, str]]
) -> torch.Tensor | None:
    for pattern, current in former_names:
        name = re.sub(pattern, current, name)
    return next((targets[key] for key in (name, prefix + name, name.removeprefix(prefix)) if key in targets), None)


def _check_fits(name: str, tensor: torch.Tensor, target: torch.Tensor, path: Path) -> None:
    if target.shape != tensor.shape:
        raise ValueError(
            f"{path}: weight '{name}' has shape {tuple(tensor.shape)}; the config asks for {tuple(target.shape)}"
        )
    if target.is_floating_point() and not tensor.is_floating_point():
        raise ValueError(
            f"{path}: weight '{name}' is {tensor.dtype}; expected floating point, not a quantized checkpoint"
        )
    if not torch.isfinite(tensor).all():
        raise ValueError(
            f"{path}: weight '{name}' holds NaN or infinity; the checkpoint is damaged, or its training broke"
        )


def _check_tie(name: str, tensor: torch.Tensor, target: torch.Tensor, earlier: str | None, path: Path) -> None:
    if earlier is not None and not torch.equal(target, tensor.to(target.dtype)):
        raise ValueError(
            f"{path}: the config ties '{name}' to '{earlier}', but they differ; set tie_word_embeddings to false"
        )


def _drop_pooler(base_model: nn.Module) -> None:
    base_model.pooler = None  # type: ignore[assignment]
