"""Stage ``retrofit``: the original, converted and distilled from itself until it survives integers; resumes exactly."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from typing import Any

import numpy as np

from deploy.data.encoding import TextEncoder
from deploy.data.text_data import read_texts
from deploy.files import write_atomically
from quietformer.progress import Job
from quietformer.recipe.original_checkpoint import original_folder, original_source
from quietformer.recipe.recipe import Recipe
from quietformer.stages.layout import (
    CHECKPOINT,
    RETROFIT_LOG,
    RETROFIT_RESULT,
    TRAIN_TEXTS,
    TRAINING,
    VALIDATION_TEXTS,
)
from quietformer.stages.stage import Run, Stage
from quietformer.stages.unfinished_training import claim_training


class RetrofitModel(Stage):
    """Training, with its own checkpoints in ``training/`` until it is done."""

    name = "retrofit"
    title = "distilling from the float original"
    tools = ("torch", "transformers", "accelerate")

    def settings(self, recipe: Recipe) -> dict[str, Any]:
        """Attention and training; how often a checkpoint is written changes nothing."""
        return {
            "attention": recipe.attention.settings().to_dict(),
            "retrofit": recipe.retrofit.model_dump(mode="json", exclude={"checkpoint_every"}),
        }

    def sources(self, recipe: Recipe) -> dict[str, str]:
        """The original checkpoint."""
        return original_source(recipe)

    def inputs(self, recipe: Recipe) -> Sequence[str]:
        """Texts to learn from, and to choose by."""
        return (TRAIN_TEXTS, VALIDATION_TEXTS)

    def outputs(self, recipe: Recipe) -> Sequence[str]:
        """Checkpoint, outcome, and the scalars of every update."""
        return (CHECKPOINT, RETROFIT_RESULT, RETROFIT_LOG)

    def work(self, run: Run, job: Job) -> str:
        """Train, or go on where an earlier run stopped."""
        from quietformer.training.training_job import TrainingJob
        from train.checkpoints.checkpoint import load, save
        from train.checkpoints.tokenizer_file import tokenizer_file
        from train.conversion.convert import convert
        from train.retrofit import retrofit
        from train.retrofit_settings import RetrofitSettings
        from train.weights.channel_split import split_channels

        recipe, original = run.recipe, original_folder(run.recipe)
        claim_training(run, self)
        settings = RetrofitSettings.from_dict(recipe.retrofit.model_dump())
        teacher, student = load(original), load(original)
        with tokenizer_file(original) as tokenizer:
            pad_id = teacher.config.pad_token_id or 0
            encoder = TextEncoder(tokenizer, max_length=settings.max_length, pad_token_id=pad_id)
        convert(student, recipe.attention.settings(), seed=settings.seed)
        if settings.split_units:
            split_channels(student, units=settings.split_units)
        result = retrofit(
            teacher,
            student,
            encoder.encode(_texts_to_learn_from(run)),
            settings,
            run.path(TRAINING),
            evaluation_rows=encoder.encode(read_texts(run.path(VALIDATION_TEXTS))),
            progress=TrainingJob(job),
        )
        save(student, run.path(CHECKPOINT), source=original, force=True)
        write_atomically(run.path(RETROFIT_LOG), run.path(f"{TRAINING}/log.jsonl").read_bytes())
        write_atomically(run.path(RETROFIT_RESULT), json.dumps(result.to_dict(), indent=1) + "\n")
        return f"{result.steps} steps, best after {result.best_step}: simulated W8A8 agreement {result.best_score:.4f}"

    def clean_up(self, run: Run) -> None:
        """Drop the training checkpoints."""
        shutil.rmtree(run.path(TRAINING), ignore_errors=True)


def _texts_to_learn_from(run: Run) -> list[str]:
    """All texts, or as many of them, chosen by the seed, as the run can read."""
    settings = run.recipe.retrofit
    texts = read_texts(run.path(TRAIN_TEXTS))
    needed = settings.steps * settings.batch_size
    if len(texts) <= needed:
        return texts
    chosen = np.random.default_rng(settings.seed).choice(len(texts), size=needed, replace=False)
    return [texts[index] for index in chosen]
