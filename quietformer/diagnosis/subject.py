"""What is looked at: a checkpoint, the batches it is run on, and the one sequence that is shown in full.

A checkpoint that reads tokens gets texts, one that reads pixels gets images; the family says which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel

from deploy.data.encoding import TextEncoder
from deploy.data.example_draw import ExamplesUsed, draw
from deploy.data.image_data import LabelledImage, each_image
from deploy.data.image_encoding import PIXEL_INPUT
from deploy.data.image_preprocessing import read_image_encoder
from deploy.data.text_data import each_text
from quietformer.diagnosis.token_texts import TokenTexts
from quietformer.graph_data.graph_text import USUAL_LENGTH
from quietformer.report.content import ModelFacts
from train.batches.text_batches import pad_rows, sequential_batches
from train.checkpoints.checkpoint import load
from train.checkpoints.checkpoint_files import checkpoint_sha256, read_positions
from train.checkpoints.tokenizer_file import tokenizer_file
from train.families.known_families import family_of, layers_of

BATCH_SIZE = 16
"""Rows of a batch; no figure depends on it."""
SHOWN_TOKENS = 32
"""The shown text is cut to so many tokens, so that each can be read."""

Batch = Mapping[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownToken:
    """A token of the shown sequence."""

    text: str
    delimits: bool
    """Special token, punctuation or line break."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """A model and what it is run on."""

    model: PreTrainedModel
    batches: Sequence[Batch]
    num_examples: int
    shown: Batch
    """One row without padding."""
    shown_tokens: tuple[ShownToken, ...] | None
    """Its tokens, ``None`` for an image."""
    delimiters: tuple[int, ...]
    """Token ids; none for a model of images."""
    token_texts: TokenTexts | None
    patches: tuple[int, int] | None
    """Rows and columns of patches on an image, ``None`` for a model of texts."""


def open_subject(
    checkpoint: Path, data: str, *, limit: int, seed: int | None = None, length: int | None
) -> tuple[Subject, ExamplesUsed]:
    """Load a checkpoint and read what it is run on; and which examples of the data these are.

    Args:
        checkpoint: checkpoint folder.
        data: texts, or images for a model that reads them.
        limit: use so many, drawn at random from all.
        seed: of the draw, 0 by default.
        length: texts are cut to so many tokens; by default 128, or the model's positions where they are fewer.

    Raises:
        FileNotFoundError: checkpoint, tokenizer or data are missing.
        ValueError: one of them cannot be read, or ``length`` is above the model's positions or given for images.
        ImportError: images without the packages that read them.
    """
    model = load(checkpoint)
    if family_of(model).inputs == "pixels":
        if length is not None:
            raise ValueError(f"{checkpoint} reads images; --length is for models that read texts")
        images = draw(each_image(data, labelled=False, allow_evaluation_split=True), limit=limit, seed=seed)
        return _of_images(model, checkpoint, images.examples), images.used
    texts = draw(each_text(data, allow_evaluation_split=True), limit=limit, seed=seed)
    return _of_texts(model, checkpoint, texts.examples, length=length), texts.used


def facts_of(subject: Subject, checkpoint: Path, *, source: str) -> ModelFacts:
    """Facts of the model as it was built, whatever its files say; ``source`` is what the user called it."""
    model = subject.model
    layers = layers_of(model)
    return ModelFacts(
        name=source.removeprefix("package:").rstrip("/").rpartition("/")[2],
        family=family_of(model).name,
        num_layers=len(layers),
        hidden_size=layers[0].ffn_out.out_features,
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        checkpoint_sha256=checkpoint_sha256(checkpoint),
        source=source,
    )


def _of_texts(model: PreTrainedModel, checkpoint: Path, texts: Sequence[str], *, length: int | None) -> Subject:
    positions = read_positions(checkpoint) or model.config.max_position_embeddings
    length = min(USUAL_LENGTH, positions) if length is None else length
    if length > positions:
        raise ValueError(f"length {length} is above the {positions} positions of {checkpoint}")
    pad_id = model.config.pad_token_id if model.config.pad_token_id is not None else 0  # padding is masked
    with tokenizer_file(checkpoint) as file:
        rows = TextEncoder(file, max_length=length, pad_token_id=pad_id).encode(texts)
        shown = TextEncoder(file, max_length=min(length, SHOWN_TOKENS), pad_token_id=pad_id)
        token_texts = TokenTexts(file)
    (shown_row,) = shown.encode([max(texts[:BATCH_SIZE], key=len)])
    return Subject(
        model=model,
        batches=sequential_batches(rows, batch_size=BATCH_SIZE, pad_id=pad_id),
        num_examples=len(rows),
        shown=pad_rows([shown_row], pad_id=pad_id),
        shown_tokens=tuple(
            ShownToken(text=token_texts.text(int(token)), delimits=token_texts.is_delimiter(int(token)))
            for token in shown_row
        ),
        delimiters=tuple(token_texts.delimiters()),
        token_texts=token_texts,
        patches=None,
    )


def _of_images(model: PreTrainedModel, checkpoint: Path, images: Sequence[LabelledImage]) -> Subject:
    encoder = read_image_encoder(checkpoint)
    pixels = encoder.pixels(images)
    batches = [
        {PIXEL_INPUT: torch.from_numpy(encoder.normalise(pixels[start : start + BATCH_SIZE]))}
        for start in range(0, len(pixels), BATCH_SIZE)
    ]
    return Subject(
        model=model,
        batches=batches,
        num_examples=len(pixels),
        shown={PIXEL_INPUT: batches[0][PIXEL_INPUT][:1]},
        shown_tokens=None,
        delimiters=(),
        token_texts=None,
        patches=_patches(model, encoder.size),
    )


def _patches(model: PreTrainedModel, size: tuple[int, int]) -> tuple[int, int]:
    """From the stride of the patch convolution."""
    stride = next(module.stride for module in model.modules() if isinstance(module, torch.nn.Conv2d))
    return size[0] // int(stride[0]), size[1] // int(stride[1])
