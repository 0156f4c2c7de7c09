"""Retrofit: distil a converted model from its float original until it survives integers.

The student starts as the teacher (converted, so its outputs are the same), learns on plain text or images with no labels, and is judged
during the run by what it is for: its simulated integer model against the teacher's float outputs on held-out rows. The best state
by that judgement is kept, the start included, so a retrofit never ends worse than it began.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import Accelerator
from transformers import PreTrainedModel

from train.batches.text_batches import Batch
from train.families.known_families import hidden_size_of
from train.loop.optimizer_update import Objective
from train.loop.progress import Evaluation, TrainingProgress
from train.loop.training_loop import default_accelerator, run_training
from train.loop.training_run import AfterUpdate
from train.loop.training_state import tensors_sha256
from train.objectives.agreement import HeldOutRows
from train.objectives.distillation import Distillation
from train.objectives.logit_distillation import HeldOutLogits, LogitDistillation
from train.objectives.penalty import PenaltySettings
from train.observation.named_tensors import named_tensors
from train.retrofitting.retrofit_data import RetrofitData
from train.retrofitting.retrofit_settings import RetrofitSettings
from train.simulation.fake_quant import simulated
from train.simulation.quantization_aware import QuantizationAware
from train.weights.weight_limit import WeightLimit


@dataclass(frozen=True, kw_only=True, slots=True)
class RetrofitResult:
    """How a retrofit ended; the student holds its best state."""

    steps: int
    """Updates done."""
    stopped_early: bool
    """Whether patience ran out before the last step."""
    best_step: int
    """Updates after which the best evaluation was made; 0 is the untouched student."""
    best_score: float
    """Pearson correlation of the integer model's similarities with the teacher's; with objective ``logits`` the negative divergence."""
    history: list[dict[str, float]]
    """One entry per evaluation: ``step``, ``score``, and the figures of :class:`train.objectives.agreement.HeldOutRows` or
    :class:`train.objectives.logit_distillation.HeldOutLogits` for the simulated integer model (``quantized_…``) and the float student
    (``float_…``)."""
    seconds: float
    """Wall-clock time."""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def retrofit(
    teacher: PreTrainedModel,
    student: PreTrainedModel,
    data: RetrofitData,
    settings: RetrofitSettings,
    out_dir: Path,
    *,
    progress: TrainingProgress | None = None,
    accelerator: Accelerator | None = None,
) -> RetrofitResult:
    """Train ``student`` in place; a run that was stopped resumes from ``out_dir``.

    With objective ``hidden`` only the trunk is trained and compared (``base_model``): heads read hidden states, which stay the teacher's.

    Args:
        teacher: float original, left as it is, moved to the accelerator's device.
        student: the same model converted by :func:`train.conversion.convert.convert`, and prepared
            (:mod:`train.retrofitting.retrofit_preparation`) where the settings say so; vanilla settings make the arms without gates.
        data: from :func:`train.retrofitting.retrofit_data.text_data` or :func:`train.retrofitting.retrofit_data.image_data`.
        settings: see :class:`train.retrofitting.retrofit_settings.RetrofitSettings`.
        out_dir: gets ``log.jsonl`` and ``checkpoints/``.
        progress: callbacks on the main process.
        accelerator: an existing one; by default :func:`train.loop.training_loop.default_accelerator`.

    Raises:
        ValueError: teacher and student do not fit each other, there is no head to distil, the run in ``out_dir`` is another one, or the loss
            is no longer finite.
    """
    if hidden_size_of(teacher) != hidden_size_of(student):
        raise ValueError(
            f"the teacher's hidden states have {hidden_size_of(teacher)} features, "
            f"the student's {hidden_size_of(student)}"
        )
    loop_settings = settings.loop_settings()
    accelerator = accelerator or default_accelerator(loop_settings)
    float_model, model = (_compared(whole, settings) for whole in (teacher, student))
    float_model.to(accelerator.device).eval()
    model.to(accelerator.device)
    judge = HeldOutRows if settings.objective == "hidden" else HeldOutLogits
    held_out = judge(float_model, data.evaluation, device=accelerator.device)
    penalty = settings.penalty_settings()
    watched = (penalty or PenaltySettings()).relative_widths
    with named_tensors(model, kinds=watched) as tensors:
        rounding: dict[str, Any] = {
            "penalty": penalty,
            "quantization": _quantization_aware(model, settings, data.calibration[0]),
            "quantization_from": settings.steps - settings.quantization_aware_steps,
        }
        objective: Objective
        if settings.objective == "hidden":
            objective = Distillation(float_model, tensors, embedding_weight=settings.embedding_weight, **rounding)
        else:
            objective = LogitDistillation(float_model, tensors, **rounding)
        result = run_training(
            model,
            objective,
            data.batches,
            loop_settings,
            out_dir=out_dir,
            evaluate=_Judgement(held_out, data.calibration, settings),
            progress=progress,
            after_update=_weight_limit(model, settings),
            identity={
                **settings.to_dict(),
                "prefix": settings.prefix if isinstance(settings.prefix, str) else list(settings.prefix),
                "teacher_sha256": tensors_sha256(float_model),
                "evaluation_rows_sha256": data.evaluation_sha256,
            },
            accelerator=accelerator,
        )
    assert result.best_step is not None
    assert result.best_score is not None
    return RetrofitResult(
        steps=result.steps,
        stopped_early=result.stopped_early,
        best_step=result.best_step,
        best_score=result.best_score,
        history=result.history,
        seconds=result.seconds,
    )


def _compared(model: PreTrainedModel, settings: RetrofitSettings) -> PreTrainedModel:
    """The part of a model that the objective looks at."""
    if settings.objective == "hidden":
        return cast("PreTrainedModel", model.base_model)
    if model is model.base_model:
        raise ValueError(
            f"objective 'logits' needs a model with a head; this is a bare {type(model).__name__}: use 'hidden'"
        )
    return model


class _Judgement:
    """The simulated integer model against the teacher, on held-out rows."""

    def __init__(
        self, held_out: HeldOutRows | HeldOutLogits, calibration: Sequence[Batch], settings: RetrofitSettings
    ) -> None:
        self._held_out, self._calibration, self._settings = held_out, calibration, settings

    def __call__(self, model: torch.nn.Module) -> Evaluation:
        assert isinstance(model, PreTrainedModel)
        settings = self._settings
        figures = self._held_out.figures(model, prefix="float")
        with simulated(
            model,
            self._calibration,
            profile=settings.evaluation_profile,
            weights=settings.evaluation_weights,
            weight_bits=settings.weight_bits,
            activation_bits=settings.activation_bits,
        ):
            figures |= self._held_out.figures(model, prefix="quantized")
        if settings.objective == "hidden":
            return Evaluation(score=figures["quantized_pearson"], figures=figures)
        return Evaluation(score=-figures["quantized_divergence"], figures=figures)


def _quantization_aware(trunk: PreTrainedModel, settings: RetrofitSettings, batch: Batch) -> QuantizationAware | None:
    if not settings.quantization_aware_steps:
        return None
    return QuantizationAware(
        trunk,
        batch,
        profile=settings.evaluation_profile,
        weight_bits=settings.weight_bits,
        activation_bits=settings.activation_bits,
    )


def _weight_limit(trunk: PreTrainedModel, settings: RetrofitSettings) -> AfterUpdate | None:
    if not settings.weight_limit:
        return None
    return WeightLimit(trunk, deviations=settings.weight_limit, ramp_steps=settings.penalty_ramp_steps).clip_
