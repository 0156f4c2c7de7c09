"""``[train]`` of a recipe: a labelled task learnt from scratch, or from a checkpoint. Imports no torch."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from quietformer.recipe.sections import Bits, NaturalInt, PositiveInt, Section
from train.loop.loop_settings import LoopSettings, MixedPrecision
from train.loop.schedule import DecayKind

ObjectiveName = Literal["masked_lm", "causal_lm", "image_classification", "text_classification", "sentence_similarity"]
"""What is learnt: :mod:`train.objectives.masked_lm`, :mod:`train.objectives.causal_lm`, :mod:`train.objectives.classification`, :mod:`train.objectives.sentence_similarity`."""
ON_CHECKPOINTS: tuple[ObjectiveName, ...] = ("text_classification", "sentence_similarity")
"""Fine-tune a checkpoint; the others begin from scratch."""

_OWN_KEYS: dict[str, tuple[ObjectiveName, ...]] = {
    "length": ("masked_lm", "causal_lm", "text_classification", "sentence_similarity"),
    "mask_share": ("masked_lm",),
    "label_smoothing": ("image_classification", "text_classification"),
    "mixup": ("image_classification",),
    "cutmix": ("image_classification",),
    "crop_padding": ("image_classification",),
    "flip": ("image_classification",),
}
"""Keys that only some objectives read."""


class TrainSection(Section):
    """``[train]``: the loop (see :class:`train.loop.loop_settings.LoopSettings`), the objective, and what is measured during the run."""

    objective: ObjectiveName
    steps: PositiveInt
    batch_size: PositiveInt
    """Rows per update, over all processes and accumulated parts."""
    accumulation: PositiveInt = 1
    length: Annotated[int, Field(ge=2)] = 128
    """Tokens of a window of text; labelled texts are cut to so many."""
    learning_rate: Annotated[float, Field(gt=0)]
    decay: DecayKind = "linear"
    warmup_steps: NaturalInt = 0
    final_fraction: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Part of the peak learning rate that the decay ends at."""
    betas: Annotated[tuple[float, float], Field(strict=False)] = (0.9, 0.999)
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    decay_norms: bool = False
    """Decay normalisation weights too; the paper finds that it helps OPT."""
    clip_norm: Annotated[float | None, Field(gt=0)] = 1.0
    mixed_precision: MixedPrecision = "no"
    penalty_weight: Annotated[float, Field(ge=0)] = 0.0
    """Of the outlier penalty (:mod:`train.objectives.penalty`); 0 leaves it out."""
    penalty_ramp_steps: NaturalInt = 0
    penalty_width: Annotated[float, Field(gt=0)] = 5.0
    penalty_power: Annotated[float, Field(ge=2)] = 4.0
    penalty_knee: Annotated[float, Field(ge=1)] = 8.0
    mask_share: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Predicted tokens of a masked window."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    mixup: Annotated[float, Field(ge=0)] = 0.0
    """Parameter of Mixup; 0: none."""
    cutmix: Annotated[float, Field(ge=0)] = 0.0
    """Parameter of CutMix; 0: none."""
    crop_padding: NaturalInt = 0
    """Pixels added around an image before a random crop."""
    flip: bool = False
    """Mirror half of the images."""
    seeds: Annotated[tuple[NaturalInt, ...], Field(strict=False, min_length=1)] = (0,)
    """One model each; the first one's goes on through the run, the others tell how much chance matters."""
    evaluate_every: NaturalInt = 0
    """Updates between evaluations; 0: at the end only."""
    validation_batches: PositiveInt = 8
    """Batches of the training's batch size that every evaluation uses."""
    calibration_batches: PositiveInt = 4
    """Training batches from which the simulated integer models take their ranges."""
    evaluation_profiles: Annotated[tuple[Literal["paper", "tensorrt"], ...], Field(strict=False)] = (
        "paper",
        "tensorrt",
    )
    """Simulated in W8A8 at every evaluation."""
    weight_bits: Bits = 8
    activation_bits: Bits = 8
    patience: PositiveInt | None = None
    checkpoint_every: NaturalInt = 500
    log_every: PositiveInt = 10
    tensorboard: bool = False
    """Also write the scalars for TensorBoard, to ``tensorboard/`` in the run directory."""

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        self.loop_settings(seed=0)
        for key, objectives in _OWN_KEYS.items():
            if self.objective not in objectives and getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(f"{key} has no effect with objective = '{self.objective}'")
        if len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"seeds {list(self.seeds)} repeat one another")
        return self

    def loop_settings(self, *, seed: int) -> LoopSettings:
        """What the training loop needs of it."""
        shared = {field.name for field in fields(LoopSettings)} & set(type(self).model_fields)
        values: dict[str, Any] = self.model_dump(include=shared)
        return LoopSettings(seed=seed, **values)
