"""``[retrofit]`` of a recipe: a checkpoint brought into a form that survives integers. Imports no torch."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from quietformer.recipe.sections import Bits, NaturalInt, PositiveInt, Section
from train.loop.loop_settings import LoopSettings, MixedPrecision
from train.loop.schedule import DecayKind


class RetrofitSection(Section):
    """``[retrofit]``: the fields of :class:`train.retrofitting.retrofit_settings.RetrofitSettings`, which explains each.

    The arms: gates are in ``[attention]``, the penalty is ``penalty_weight``; each can be left out.
    """

    prefix: str | Annotated[tuple[NaturalInt, ...], Field(strict=False)] = ()
    rotate: bool = False
    equalize: bool = False
    round_weights: bool = False
    preparation_rows: PositiveInt = 64
    objective: Literal["hidden", "logits"] = "hidden"
    steps: NaturalInt = 400
    batch_size: PositiveInt = 16
    accumulation: PositiveInt = 1
    max_length: PositiveInt = 128
    """Texts are cut to so many tokens."""
    learning_rate: Annotated[float, Field(gt=0)] = 2e-4
    decay: DecayKind = "linear"
    warmup_steps: NaturalInt = 20
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    clip_norm: Annotated[float, Field(gt=0)] = 1.0
    mixed_precision: MixedPrecision = "no"
    penalty_weight: Annotated[float, Field(ge=0)] = 0.1
    penalty_ramp_steps: NaturalInt = 100
    penalty_width: Annotated[float, Field(gt=0)] = 5.0
    penalty_power: Annotated[float, Field(ge=2)] = 4.0
    penalty_norm_ratio: Annotated[float, Field(gt=0)] = 2.0
    penalty_inner_ratio: Annotated[float, Field(ge=0)] = 0.0
    penalty_knee: Annotated[float, Field(ge=1)] = 8.0
    embedding_weight: Annotated[float, Field(ge=0)] = 1.0
    split_units: NaturalInt = 0
    weight_limit: Annotated[float, Field(ge=0)] = 0.0
    quantization_aware_steps: NaturalInt = 0
    seed: NaturalInt = 0
    evaluate_every: NaturalInt = 100
    patience: PositiveInt | None = None
    checkpoint_every: NaturalInt = 100
    calibration_rows: PositiveInt = 64
    evaluation_profile: Literal["paper", "tensorrt"] = "paper"
    evaluation_weights: Literal["minmax", "mse"] = "minmax"
    weight_bits: Bits = 8
    activation_bits: Bits = 8

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        shared = {field.name for field in fields(LoopSettings)} & set(RetrofitSection.model_fields)
        LoopSettings(**self.model_dump(include=shared))
        if self.rotate and self.objective == "hidden":
            raise ValueError(
                "rotate puts hidden states in another basis than the teacher's; it needs objective = 'logits'"
            )
        return self
