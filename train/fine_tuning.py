"""A checkpoint with a head for another task: the trunk's weights are its own, the head's are fresh."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import torch
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING

from train.attention.settings import AttentionSettings
from train.checkpoints.checkpoint import load
from train.conversion.convert import CONFIG_KEY, attach_settings, convert, settings_of


def load_trunk(path: Path, settings: AttentionSettings, *, seed: int) -> PreTrainedModel:
    """The bare, converted model of a checkpoint.

    Args:
        path: checkpoint.
        settings: of the attention, for a checkpoint with vanilla attention; vanilla ones leave a converted one as it is.
        seed: of new gates.

    Raises:
        ValueError: neither the checkpoint's attention nor ``settings`` are vanilla; and as :func:`train.checkpoints.checkpoint.load`.
    """
    trunk = load(path, head="none")
    if settings_of(trunk) is None or not settings.is_vanilla:
        convert(trunk, settings, seed=seed)
    return trunk


def text_classifier(
    path: Path, settings: AttentionSettings, *, num_labels: int, seed: int, dropout: float | None = None
) -> PreTrainedModel:
    """A classifier of texts on the trunk of a checkpoint.

    Args:
        path: checkpoint of the BERT family.
        settings: as for :func:`load_trunk`.
        num_labels: classes.
        seed: of the head, and of a pooler where the checkpoint brings none; the caller's generator is left alone.
        dropout: rate before the classifier; by default the config's.

    Raises:
        ValueError: the family has no such head; and as :func:`load_trunk`.
    """
    trunk = load_trunk(path, settings, seed=seed)
    config = trunk.config
    if type(config) not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING:
        raise ValueError(f"{path}: model type '{config.model_type}' has no head that classifies texts")
    config.num_labels = num_labels
    if dropout is not None:
        config.classifier_dropout = dropout
    model_class = cast("type[PreTrainedModel]", MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING[type(config)])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_class(config)
    attach_settings(model, AttentionSettings.from_dict(getattr(config, CONFIG_KEY)), seed=seed)
    missing, unexpected = model.base_model.load_state_dict(trunk.state_dict(), strict=False)
    assert not [name for name in missing if not name.startswith("pooler.")]
    assert not [name for name in unexpected if not name.startswith("pooler.")]
    return model
