"""Stage ``data``: the texts of a run, split once into those to learn and calibrate from, to choose by, and to measure on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from calibration_data.docstrings import collect_sentences
from calibration_data.sentence_split import sentences_of_texts
from deploy.data.text_data import data_identity, read_texts
from deploy.files import write_atomically
from quietformer.progress import Job
from quietformer.recipe.recipe import Recipe
from quietformer.recipe.sections import DOCSTRINGS
from quietformer.stages.layout import HELD_OUT_TEXTS, TRAIN_TEXTS, VALIDATION_TEXTS
from quietformer.stages.stage import Run, Stage

_SPLIT_SEED = 0


class PrepareData(Stage):
    """Reads texts, drops repetitions, holds some out.

    Documentation strings are taken from the packages of the first run's environment and kept: an updated package does not
    undo a run.
    """

    name = "data"
    title = "reading texts"

    def settings(self, recipe: Recipe) -> dict[str, Any]:
        """The recipe's table."""
        return recipe.data.model_dump(mode="json")

    def sources(self, recipe: Recipe) -> dict[str, str]:
        """The files of the texts."""
        if recipe.data.texts == DOCSTRINGS:
            return {}
        identity = data_identity(recipe.data.texts, column=recipe.data.column)
        return {"texts": hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()}

    def reason_to_skip(self, recipe: Recipe) -> str | None:
        """A model of images reads no text."""
        return "the recipe's data is images" if recipe.data.images is not None else None

    def outputs(self, recipe: Recipe) -> Sequence[str]:
        """Three files of JSON lines."""
        return (TRAIN_TEXTS, VALIDATION_TEXTS, HELD_OUT_TEXTS)

    def work(self, run: Run, job: Job) -> str:
        """Read, split, write."""
        data = run.recipe.data
        texts = list(dict.fromkeys(_read(run.recipe)))
        kept_apart = data.held_out + data.validation
        if len(texts) <= kept_apart:
            raise ValueError(
                f"{data.texts} holds {len(texts)} different texts; data.held_out and data.validation alone take {kept_apart}"
            )
        needed = run.recipe.calibrate.batches * run.recipe.calibrate.batch_size
        if len(texts) - kept_apart < needed:
            raise ValueError(
                f"{data.texts} leaves {len(texts) - kept_apart} texts to learn from; calibrate.batches times "
                f"calibrate.batch_size asks for {needed} of them"
            )
        order = np.random.default_rng(_SPLIT_SEED).permutation(len(texts))
        parts = np.split(order, [data.held_out, kept_apart])
        for name, indices in zip((HELD_OUT_TEXTS, VALIDATION_TEXTS, TRAIN_TEXTS), parts, strict=True):
            lines = (json.dumps({"text": texts[index]}, ensure_ascii=False) + "\n" for index in sorted(indices))
            write_atomically(run.path(name), "".join(lines))
        return (
            f"{len(texts) - kept_apart} texts to learn from, {data.validation} to choose by, {data.held_out} held out"
        )


def _read(recipe: Recipe) -> list[str]:
    if recipe.data.texts != DOCSTRINGS:
        texts = read_texts(recipe.data.texts, column=recipe.data.column, limit=recipe.data.limit)
        return list(sentences_of_texts(texts)) if recipe.data.unit == "sentence" else texts
    if recipe.data.column is not None:
        raise ValueError(f"data.column has no effect with data.texts = '{DOCSTRINGS}'")
    return collect_sentences(limit=recipe.data.limit).sentences
