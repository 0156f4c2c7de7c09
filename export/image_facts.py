"""What an export must know of a vision checkpoint beyond its weights: task, output, image size, preprocessing, classes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel

from deploy.data.image_encoding import PIXEL_INPUT, ImageEncoder
from deploy.data.image_preprocessing import read_image_encoder
from deploy.graphs.graph_info import Task
from train.families.known_families import layers_of

_HEADS: dict[str, tuple[Task, str]] = {
    "Model": ("image-feature-extraction", "last_hidden_state"),
    "ForImageClassification": ("image-classification", "logits"),
}
"""Ending of the architecture's name, the task, the output of the graph."""
_UNNAMED = re.compile(r"LABEL_\d+")
"""What transformers calls a class without a name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageFacts:
    """Facts read from a loaded model and its folder."""

    task: Task
    output: str
    """Field of the model's result that the graph puts out."""
    positions: int
    """Tokens that an image becomes, class token and registers included."""
    encoder: ImageEncoder
    labels: tuple[str, ...]
    """Names of the classes, none where the checkpoint has none."""


def read_image_facts(model: PreTrainedModel, checkpoint: Path) -> ImageFacts:
    """Read the facts; the model is run once.

    Raises:
        FileNotFoundError: the folder does not say how images are prepared.
        ValueError: a head that cannot be exported, or preprocessing that gives images of another size than the model takes.
    """
    architecture = type(model).__name__
    known = [found for ending, found in _HEADS.items() if architecture.endswith(ending)]
    if not known:
        raise ValueError(
            f"{checkpoint} is a {architecture}; expected one that ends in {', '.join(_HEADS)} (the bare encoder, or a "
            "classifier of images)"
        )
    task, output = known[0]
    encoder = read_image_encoder(checkpoint)
    return ImageFacts(
        task=task,
        output=output,
        positions=_positions(model, encoder.size, checkpoint),
        encoder=encoder,
        labels=_labels(model) if task == "image-classification" else (),
    )


def _positions(model: PreTrainedModel, size: tuple[int, int], checkpoint: Path) -> int:
    lengths: list[int] = []
    layer = layers_of(model)[0].layer
    handle = layer.register_forward_pre_hook(lambda _module, args: lengths.append(args[0].shape[1]))
    try:
        with torch.no_grad():
            model(**{PIXEL_INPUT: torch.zeros(1, 3, *size)})
    except (AssertionError, RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".") if str(error) else type(error).__name__
        raise ValueError(
            f"{checkpoint} prepares images of {size[0]} x {size[1]}, which its model refuses: {reason}"
        ) from error
    finally:
        handle.remove()
    return lengths[0]


def _labels(model: PreTrainedModel) -> tuple[str, ...]:
    names = {int(number): str(name) for number, name in (model.config.id2label or {}).items()}
    ordered = tuple(names[number] for number in sorted(names))
    complete = len(names) == model.config.num_labels
    return () if not complete or all(_UNNAMED.fullmatch(name) for name in ordered) else ordered
