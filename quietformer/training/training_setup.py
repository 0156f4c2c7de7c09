"""Everything that a ``[train]`` recipe needs to train: model, task, and batches by seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quietformer.recipe.recipe import Recipe
from quietformer.recipe.training_section import ObjectiveName
from train.batches.text_batches import Batch
from train.conversion.architecture import ModelDescription, TaskHead
from train.loop.optimizer_update import BatchSource
from train.objectives.learning_task import LearningTask
from train.objectives.penalty import PenaltySettings
from train.validation import Validation, ValidationSettings

HEADS: dict[ObjectiveName, TaskHead] = {
    "masked_lm": "masked-lm",
    "causal_lm": "causal-lm",
    "image_classification": "image-classification",
}
"""Head that a model from scratch needs for each objective that has one."""
_CALIBRATION_FROM = 10**9
"""Update from which calibration batches are taken: training data in an order that no run reaches."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingSetup:
    """What one objective makes of a recipe and its data."""

    build: Callable[..., Any]
    """Makes the converted model of a ``seed``, given by name."""
    task: Callable[[Any], LearningTask]
    """From the bare model."""
    batches: Callable[[int], BatchSource]
    """Training batches of a seed."""
    validation_batches: Sequence[Batch]
    companions: Path
    """Folder of the files that travel with the checkpoint: tokenizer or image preprocessing."""

    def validation(self, recipe: Recipe, task: LearningTask, source: BatchSource) -> Validation:
        """What the run is measured by."""
        assert recipe.train is not None
        count = recipe.train.calibration_batches
        return Validation(
            task,
            self.validation_batches,
            calibration=[source.batch(_CALIBRATION_FROM + index) for index in range(count)],
            settings=ValidationSettings(
                profiles=recipe.train.evaluation_profiles,
                weight_bits=recipe.train.weight_bits,
                activation_bits=recipe.train.activation_bits,
            ),
        )


def describe(recipe: Recipe, config: Mapping[str, Any]) -> ModelDescription:
    """The recipe's model from scratch, with the values that its data decided."""
    assert recipe.train is not None
    assert recipe.model.architecture is not None
    return ModelDescription(architecture=recipe.model.architecture, config=config, head=HEADS[recipe.train.objective])


def whole_number(config: Mapping[str, Any], *keys: str) -> int | None:
    """The first of ``keys`` that ``[model.config]`` gives, ``None`` where it gives none.

    Raises:
        ValueError: the value is no whole number of at least 1.
    """
    key = next((key for key in keys if key in config), None)
    if key is None:
        return None
    value = config[key]
    if type(value) is not int or value < 1:
        raise ValueError(f"model.config.{key} is {value!r}; expected a whole number of at least 1")
    return value


def penalty_of(recipe: Recipe) -> PenaltySettings | None:
    """The outlier penalty that a recipe's ``[train]`` asks for."""
    settings = recipe.train
    if settings is None or not settings.penalty_weight:
        return None
    return PenaltySettings(width=settings.penalty_width, power=settings.penalty_power, knee=settings.penalty_knee)
