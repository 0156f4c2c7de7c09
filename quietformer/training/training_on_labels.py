"""Fine-tuning a checkpoint on labelled texts or scored pairs: the run's own split decides what is learnt from and chosen by."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.data.encoding import TextEncoder
from deploy.data.example_draw import draw
from deploy.data.text_data import read_labelled, read_pairs, read_texts
from quietformer.recipe.original_checkpoint import original_folder
from quietformer.recipe.recipe import Recipe
from quietformer.training.training_setup import TrainingSetup
from train.batches.text_batches import TokenRow
from train.checkpoints.tokenizer_file import tokenizer_file
from train.fine_tuning import load_trunk, text_classifier
from train.loop.optimizer_update import BatchSource
from train.objectives.classification import Classification
from train.objectives.labelled_batches import LabelledRows, ScoredPairs, labelled_batches, pair_batch
from train.objectives.learning_task import LearningTask
from train.objectives.sentence_similarity import SentenceSimilarity


def classification_setup(recipe: Recipe, *, train_texts: Path, validation_texts: Path) -> TrainingSetup:
    """Set the fine-tuning of a text classifier up.

    Args:
        recipe: with ``[train]`` and a checkpoint; its ``data.texts`` has labels.
        train_texts: the texts to learn from.
        validation_texts: those to choose by.

    Raises:
        FileNotFoundError: data or checkpoint are missing.
        ValueError: the data has no labels, or too few texts.
    """
    settings = recipe.train
    assert settings is not None
    encoder = _encoder(recipe, length=settings.length)
    label_of = {entry.text.strip(): entry.label for entry in read_labelled(recipe.data.texts)}
    (train_rows, train_labels), (held_rows, held_labels) = (
        _labelled(read_texts(file), label_of, encoder) for file in (train_texts, validation_texts)
    )
    pad_id, size = encoder.pad_token_id, settings.batch_size
    num_labels = max(label_of.values()) + 1

    def batches(seed: int) -> BatchSource:
        return LabelledRows(train_rows, train_labels, batch_size=size, pad_id=pad_id, seed=seed)

    def task(_model: Any) -> LearningTask:
        return Classification(label_smoothing=settings.label_smoothing)

    judged = draw(range(len(held_rows)), limit=settings.validation_batches * size).examples
    validation_rows, validation_labels = [held_rows[index] for index in judged], held_labels[judged]
    return TrainingSetup(
        build=partial(text_classifier, original_folder(recipe), recipe.attention.settings(), num_labels=num_labels),
        task=task,
        batches=batches,
        validation_batches=labelled_batches(validation_rows, validation_labels, batch_size=size, pad_id=pad_id),
        companions=original_folder(recipe),
    )


def similarity_setup(recipe: Recipe) -> TrainingSetup:
    """Set the fine-tuning of a sentence encoder on scored pairs up; ``data.validation`` pairs are held out, chosen at random.

    Raises:
        FileNotFoundError: data or checkpoint are missing.
        ValueError: the data has no pairs, all have one score, or there are too few.
    """
    settings = recipe.train
    assert settings is not None
    encoder = _encoder(recipe, length=settings.length)
    pairs = read_pairs(recipe.data.texts)
    scores_N = np.array([pair.score for pair in pairs], dtype=np.float32)
    if np.ptp(scores_N) == 0:
        raise ValueError(
            f"{recipe.data.texts}: all {len(pairs)} pairs have the score {scores_N[0]:g}; nothing to learn"
        )
    scores_N = (scores_N - scores_N.min()) / np.ptp(scores_N)
    first, second = encoder.encode([pair.first for pair in pairs]), encoder.encode([pair.second for pair in pairs])
    order = np.random.default_rng(0).permutation(len(pairs))
    held, learnt = order[: recipe.data.validation], order[recipe.data.validation :]
    pad_id, size = encoder.pad_token_id, settings.batch_size

    def rows(side: list[TokenRow], indices: NDArray[np.int64]) -> list[TokenRow]:
        return [side[index] for index in indices]

    def batches(seed: int) -> BatchSource:
        return ScoredPairs(
            rows(first, learnt), rows(second, learnt), scores_N[learnt], batch_size=size, pad_id=pad_id, seed=seed
        )

    def task(_model: Any) -> LearningTask:
        return SentenceSimilarity()

    groups = [held[start : start + size] for start in range(0, len(held), size)][: settings.validation_batches]
    return TrainingSetup(
        build=partial(load_trunk, original_folder(recipe), recipe.attention.settings()),
        task=task,
        batches=batches,
        validation_batches=[
            pair_batch(rows(first, group), rows(second, group), scores_N[group], pad_id=pad_id) for group in groups
        ],
        companions=original_folder(recipe),
    )


def _encoder(recipe: Recipe, *, length: int) -> TextEncoder:
    with tokenizer_file(original_folder(recipe)) as file:
        return TextEncoder(file, max_length=length)


def _labelled(
    texts: list[str], label_of: dict[str, int], encoder: TextEncoder
) -> tuple[list[TokenRow], NDArray[np.int64]]:
    return encoder.encode(texts), np.array([label_of[text] for text in texts], dtype=np.int64)
