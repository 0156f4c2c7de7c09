"""Stage ``retrofit``: the original, converted and distilled from itself until it survives integers; resumes exactly."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from functools import partial
from typing import Any

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
from quietformer.stages.run_data import images_source, reads_images
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
        """The original checkpoint, and images."""
        return original_source(recipe) | images_source(recipe)

    def inputs(self, recipe: Recipe) -> Sequence[str]:
        """Texts to learn from, and to choose by."""
        return () if reads_images(recipe) else (TRAIN_TEXTS, VALIDATION_TEXTS)

    def outputs(self, recipe: Recipe) -> Sequence[str]:
        """Checkpoint, outcome, and the scalars of every update."""
        return (CHECKPOINT, RETROFIT_RESULT, RETROFIT_LOG)

    def work(self, run: Run, job: Job) -> str:
        """Prepare and train, or go on where an earlier run stopped."""
        from quietformer.training.retrofit_on_recipe import retrofit_data, token_ids_of
        from quietformer.training.training_job import TrainingJob
        from train.checkpoints.checkpoint import load, save
        from train.conversion.convert import convert
        from train.retrofitting.retrofit import retrofit
        from train.retrofitting.retrofit_preparation import finish, prepare
        from train.retrofitting.retrofit_settings import RetrofitSettings
        from train.weights.channel_split import split_channels

        recipe, original = run.recipe, original_folder(run.recipe)
        claim_training(run, self)
        settings = RetrofitSettings.from_dict(recipe.retrofit.model_dump())
        teacher, student = load(original), load(original)
        data = retrofit_data(
            recipe,
            teacher,
            settings,
            train_texts=run.path(TRAIN_TEXTS),
            validation_texts=run.path(VALIDATION_TEXTS),
            job=job,
        )
        convert(student, recipe.attention.settings(), seed=settings.seed)
        if settings.split_units:
            split_channels(student, units=settings.split_units)
        encode = partial(token_ids_of, original)
        prepared = prepare(student, settings, data.preparation, encode=encode, tell=job.tell)
        if not settings.steps:
            prepared |= finish(student, settings, data.preparation, tell=job.tell)
        result = retrofit(teacher, student, data, settings, run.path(TRAINING), progress=TrainingJob(job))
        if settings.steps:
            prepared |= finish(student, settings, data.preparation, tell=job.tell)
        save(student, run.path(CHECKPOINT), source=original, force=True)
        write_atomically(run.path(RETROFIT_LOG), run.path(f"{TRAINING}/log.jsonl").read_bytes())
        write_atomically(
            run.path(RETROFIT_RESULT), json.dumps(result.to_dict() | {"prepared": prepared}, indent=1) + "\n"
        )
        measured = "agreement" if settings.objective == "hidden" else "divergence"
        score = f"simulated W8A8 {measured} {abs(result.best_score):.4f}"
        if not settings.steps:
            return f"{', '.join(prepared) or 'nothing'} done, nothing learnt: {score}"
        return f"{result.steps} steps, best after {result.best_step}: {score}"

    def clean_up(self, run: Run) -> None:
        """Drop the training checkpoints."""
        shutil.rmtree(run.path(TRAINING), ignore_errors=True)
