"""Retrofit: distil a converted model from its float original until it survives integers.

The student starts as the teacher (converted, so its outputs are the same), learns on plain text with no labels, and is judged
during the run by what it is for: its simulated integer model against the teacher's float outputs on held-out rows. The best state
by that judgement is kept, the start included, so a retrofit never ends worse than it began.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from accelerate import Accelerator
from transformers import PreTrainedModel

from train.batches.text_batches import Batch, TextBatches, TokenRow, check_rows, rows_sha256, sequential_batches
from train.checkpoints.checkpoint_files import positions_of
from train.families.known_families import hidden_size_of
from train.loop.progress import Evaluation, TrainingProgress
from train.loop.training_loop import default_accelerator, run_training
from train.loop.training_run import AfterUpdate
from train.loop.training_state import tensors_sha256
from train.objectives.agreement import HeldOutRows
from train.objectives.distillation import Distillation
from train.objectives.penalty import PenaltySettings
from train.observation.named_tensors import named_tensors
from train.retrofit_settings import RetrofitSettings
from train.simulation.fake_quant import simulated
from train.simulation.quantization_aware import QuantizationAware
from train.weights.weight_limit import WeightLimit

_EVALUATION_BATCH = 32
_FEWEST_EVALUATION_ROWS = 3  # two similarities at least, or nothing correlates


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
    """Pearson correlation of the integer model's similarities with the teacher's."""
    history: list[dict[str, float]]
    """One entry per evaluation: ``step``, ``score``, and the figures of :class:`train.objectives.agreement.HeldOutRows` for the simulated
    integer model (``quantized_…``) and the float student (``float_…``)."""
    seconds: float
    """Wall-clock time."""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def retrofit(
    teacher: PreTrainedModel,
    student: PreTrainedModel,
    token_rows: Sequence[TokenRow],
    settings: RetrofitSettings,
    out_dir: Path,
    *,
    evaluation_rows: Sequence[TokenRow],
    progress: TrainingProgress | None = None,
    accelerator: Accelerator | None = None,
) -> RetrofitResult:
    """Train ``student`` in place; a run that was stopped resumes from ``out_dir``.

    Only the trunk is trained and compared (``base_model``): heads read hidden states, which stay the teacher's.

    Args:
        teacher: float original, left as it is, moved to the accelerator's device.
        student: the same model converted by :func:`train.conversion.convert.convert`; vanilla settings make the arms without gates.
        token_rows: training texts as 1-D arrays of ids, special tokens included, each at most ``max_length`` long.
        settings: see :class:`train.retrofit_settings.RetrofitSettings`.
        out_dir: gets ``log.jsonl`` and ``checkpoints/``.
        evaluation_rows: held-out texts in the same form, at least 3; 64 to 128 are enough.
        progress: callbacks on the main process.
        accelerator: an existing one; by default :func:`train.loop.training_loop.default_accelerator`.

    Raises:
        ValueError: rows are unusable or too few, longer than the model's positions, teacher and student do not fit each
            other, the run in ``out_dir`` is another one, or the loss is no longer finite.
    """
    _check_rows(teacher, token_rows, evaluation_rows, max_length=settings.max_length)
    if hidden_size_of(teacher) != hidden_size_of(student):
        raise ValueError(
            f"the teacher's hidden states have {hidden_size_of(teacher)} features, "
            f"the student's {hidden_size_of(student)}"
        )
    loop_settings = settings.loop_settings()
    accelerator = accelerator or default_accelerator(loop_settings)
    pad_id = student.config.pad_token_id or 0
    float_trunk, trunk = cast("PreTrainedModel", teacher.base_model), cast("PreTrainedModel", student.base_model)
    float_trunk.to(accelerator.device).eval()
    trunk.to(accelerator.device)
    calibration = sequential_batches(
        _sample(token_rows, settings.calibration_rows, seed=settings.seed),
        batch_size=settings.batch_size,
        pad_id=pad_id,
    )
    by_length = sorted(evaluation_rows, key=len)
    held_out = HeldOutRows(
        float_trunk,
        sequential_batches(by_length, batch_size=_EVALUATION_BATCH, pad_id=pad_id),
        device=accelerator.device,
    )

    def evaluate(model: torch.nn.Module) -> Evaluation:
        assert isinstance(model, PreTrainedModel)
        figures = held_out.figures(model, prefix="float")
        with simulated(
            model,
            calibration,
            profile=settings.evaluation_profile,
            weights=settings.evaluation_weights,
            weight_bits=settings.weight_bits,
            activation_bits=settings.activation_bits,
        ):
            figures |= held_out.figures(model, prefix="quantized")
        return Evaluation(score=figures["quantized_pearson"], figures=figures)

    penalty = settings.penalty_settings()
    watched = (penalty or PenaltySettings()).relative_widths
    with named_tensors(trunk, kinds=watched) as tensors:
        objective = Distillation(
            float_trunk,
            tensors,
            penalty=penalty,
            embedding_weight=settings.embedding_weight,
            quantization=_quantization_aware(trunk, settings, calibration[0]),
            quantization_from=settings.steps - settings.quantization_aware_steps,
        )
        result = run_training(
            trunk,
            objective,
            TextBatches(token_rows, batch_size=settings.batch_size, pad_id=pad_id, seed=settings.seed),
            loop_settings,
            out_dir=out_dir,
            evaluate=evaluate,
            progress=progress,
            after_update=_weight_limit(trunk, settings),
            identity={
                **settings.to_dict(),
                "teacher_sha256": tensors_sha256(float_trunk),
                "evaluation_rows_sha256": rows_sha256(evaluation_rows),
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


def _check_rows(
    teacher: PreTrainedModel, rows: Sequence[TokenRow], evaluation_rows: Sequence[TokenRow], *, max_length: int
) -> None:
    positions = positions_of(teacher.config.to_dict())
    if positions is not None and max_length > positions:
        raise ValueError(f"max_length is {max_length}; the model has {positions} positions")
    check_rows(rows, max_length=max_length)
    check_rows(evaluation_rows, max_length=max_length, what="evaluation")
    if len(evaluation_rows) < _FEWEST_EVALUATION_ROWS:
        raise ValueError(f"{len(evaluation_rows)} evaluation rows; expected at least {_FEWEST_EVALUATION_ROWS}")


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


def _sample(rows: Sequence[TokenRow], count: int, *, seed: int) -> list[TokenRow]:
    chosen = np.random.default_rng(seed).choice(len(rows), size=min(count, len(rows)), replace=False)
    return [rows[index] for index in chosen]
