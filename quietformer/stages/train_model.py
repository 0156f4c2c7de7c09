"""Stage ``train``: a model trained on a labelled task, once per seed; resumes exactly."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy.data.tokenizer_training import trained_size
from deploy.files import write_atomically
from quietformer.manifest import hash_source
from quietformer.progress import Job
from quietformer.recipe.original_checkpoint import original_source
from quietformer.recipe.recipe import Recipe
from quietformer.recipe.training_section import ON_CHECKPOINTS
from quietformer.stages.layout import (
    CHECKPOINT,
    TENSORBOARD,
    TRAIN_LOG,
    TRAIN_RESULT,
    TRAIN_TEXTS,
    TRAINING,
    VALIDATION_TEXTS,
)
from quietformer.stages.run_data import images_source, reads_images
from quietformer.stages.stage import Run, Stage
from quietformer.stages.unfinished_training import claim_training
from quietformer.training.training_processes import FOLLOWERS, is_called

if TYPE_CHECKING:
    from quietformer.training.training_setup import TrainingSetup
    from train.loop.training_loop import TrainingResult


class TrainModel(Stage):
    """Training from scratch or from a checkpoint, with its own checkpoints in ``training/`` until it is done.

    The first seed's model is the run's; the others are trained for the spread of the figures alone.
    """

    name = "train"
    title = "training"
    tools = ("torch", "transformers", "accelerate")

    def settings(self, recipe: Recipe) -> dict[str, Any]:
        """Model, attention and training; how often something is written changes nothing."""
        assert recipe.train is not None
        return {
            "model": recipe.model.model_dump(mode="json", exclude={"tokenizer", "checkpoint"}),
            "attention": recipe.attention.settings().to_dict(),
            "train": recipe.train.model_dump(mode="json", exclude={"checkpoint_every", "log_every", "tensorboard"}),
        }

    def sources(self, recipe: Recipe) -> dict[str, str]:
        """Checkpoint and labels, or tokenizer; images."""
        sources = images_source(recipe)
        if recipe.model.checkpoint is not None:
            sources |= original_source(recipe)
            data = recipe.data.texts
            is_file = not data.startswith("hf:")
            sources["labels"] = hash_source(Path(data)) if is_file else hashlib.sha256(data.encode()).hexdigest()
        if recipe.model.tokenizer is not None:
            text = recipe.model.tokenizer
            is_made = trained_size(text) is not None
            sources["tokenizer"] = hashlib.sha256(text.encode()).hexdigest() if is_made else hash_source(_folder(text))
        return sources

    def inputs(self, recipe: Recipe) -> Sequence[str]:
        """Texts to learn from, and to choose by."""
        return () if reads_images(recipe) else (TRAIN_TEXTS, VALIDATION_TEXTS)

    def outputs(self, recipe: Recipe) -> Sequence[str]:
        """Checkpoint, outcome of every seed, and the scalars of every update of the first."""
        return (CHECKPOINT, TRAIN_RESULT, TRAIN_LOG)

    def work(self, run: Run, job: Job) -> str:
        """Train each seed, or go on where an earlier run stopped."""
        from train.checkpoints.checkpoint import save

        settings = run.recipe.train
        assert settings is not None
        claim_training(run, self)
        setup = open_training(run.recipe, run.folder, job=job)
        FOLLOWERS.call(run.recipe)
        results = {}
        for place, seed in enumerate(settings.seeds):
            folder = seed_folder(run.folder, seed)
            model, results[seed] = train_seed(run.recipe, setup, run.folder, seed=seed, job=job)
            if place == 0:
                save(model, run.path(CHECKPOINT), source=setup.companions, force=True)
                write_atomically(run.path(TRAIN_LOG), (folder / "log.jsonl").read_bytes())
        content = [{"seed": seed, **_to_dict(result)} for seed, result in results.items()]
        write_atomically(run.path(TRAIN_RESULT), json.dumps(content, indent=1) + "\n")
        figures = content[0]["history"][-1]
        shown = [f"{name.replace('_', ' ', 1)} {value:.4g}" for name, value in figures.items() if _is_headline(name)]
        return f"{settings.steps} steps: {', '.join(shown)}"

    def clean_up(self, run: Run) -> None:
        """Drop the training checkpoints."""
        shutil.rmtree(run.path(TRAINING), ignore_errors=True)


def open_training(recipe: Recipe, folder: Path, *, job: Job | None = None) -> TrainingSetup:
    """What the recipe's objective makes of the run directory's data."""
    assert recipe.train is not None
    if recipe.train.objective == "image_classification":
        from quietformer.training.training_on_images import image_setup

        return image_setup(recipe, folder / TRAINING, job=job)
    if recipe.train.objective in ON_CHECKPOINTS:
        from quietformer.training.training_on_labels import classification_setup, similarity_setup

        if recipe.train.objective == "sentence_similarity":
            return similarity_setup(recipe)
        return classification_setup(
            recipe, train_texts=folder / TRAIN_TEXTS, validation_texts=folder / VALIDATION_TEXTS
        )
    from quietformer.training.training_on_text import text_setup

    return text_setup(
        recipe,
        folder / TRAINING,
        train_texts=folder / TRAIN_TEXTS,
        validation_texts=folder / VALIDATION_TEXTS,
        job=job,
    )


def seed_folder(folder: Path, seed: int) -> Path:
    """Where a seed's log and checkpoints are while it is trained."""
    return folder / TRAINING / f"seed-{seed}"


def train_seed(
    recipe: Recipe, setup: TrainingSetup, folder: Path, *, seed: int, job: Job | None = None
) -> tuple[Any, TrainingResult]:
    """Train one seed's model, in every process of a launcher alike."""
    from quietformer.training.training_job import TrainingJob
    from quietformer.training.training_setup import penalty_of
    from train.learning import learn
    from train.loop.tensorboard_log import TensorBoardLog, Watchers

    settings = recipe.train
    assert settings is not None
    model, source = setup.build(seed=seed), setup.batches(seed)
    task = setup.task(model)
    watchers: list[Any] = [] if job is None else [TrainingJob(job, score="validation")]
    if settings.tensorboard:
        watchers.append(TensorBoardLog(folder / TENSORBOARD / f"seed-{seed}"))
    result = learn(
        model,
        task,
        source,
        settings.loop_settings(seed=seed),
        out_dir=seed_folder(folder, seed),
        validation=setup.validation(recipe, task, source),
        penalty=penalty_of(recipe),
        progress=Watchers(watchers),
    )
    return model, result


def follow(recipe: Recipe, folder: Path) -> None:
    """In another process of a launcher: join the training of the first one, in every seed; end without it where there is none.

    Raises:
        ValueError: as the first process's training does.
    """
    assert recipe.train is not None
    if is_called(recipe):
        setup = open_training(recipe, folder)
        for seed in recipe.train.seeds:
            train_seed(recipe, setup, folder, seed=seed)


def _to_dict(result: TrainingResult) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(result)


def _is_headline(name: str) -> bool:
    return name.endswith(("_perplexity", "_top1", "_spearman", "max_inf_norm")) and "." not in name


def _folder(text: str) -> Path:
    path = Path(text)
    if not path.is_dir():
        raise FileNotFoundError(f"no tokenizer folder at {path}; expected a folder, or bpe:SIZE")
    return path
