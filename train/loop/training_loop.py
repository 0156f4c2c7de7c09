"""The training loop, shared by retrofit and by training from scratch, on Accelerate.

What is learnt is a callable, the objective: it maps a model and a batch to a loss and its parts. The loop owns the rest: updates (see
:mod:`train.loop.optimizer_update`), evaluation with the best state kept, early stop, checkpoints and exact resume, reports
and the log. Every process of ``accelerate launch`` runs the same code on a replica; only the main process evaluates and writes.

A killed and resumed run equals the uninterrupted one bit for bit on a CPU: batches and random draws are functions of the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, DistributedType, InitProcessGroupKwargs

from train.loop.loop_settings import WITHOUT_EFFECT_ON_RESULT, LoopSettings
from train.loop.optimizer_update import BatchSource, Objective
from train.loop.progress import SilentProgress, TrainingProgress
from train.loop.training_run import AfterUpdate, Evaluate, RunPlace, TrainingRun

_PATIENCE = timedelta(hours=24)
"""How long processes wait for one another: the main one evaluates alone, and prepares data before a run."""
_REPLICATED = (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingResult:
    """How a run ended; the model is left in its best state if it was evaluated, else in its last."""

    steps: int
    """Updates done."""
    stopped_early: bool
    """Whether patience ran out before the last step."""
    best_step: int | None
    """Updates after which the best evaluation was made."""
    best_score: float | None
    """Score of that evaluation."""
    history: list[dict[str, float]]
    """One entry per evaluation: ``step``, ``score`` and its figures."""
    seconds: float
    """Wall-clock time over all sessions of the run."""


def default_accelerator(settings: LoopSettings, *, cpu: bool = False) -> Accelerator:
    """The accelerator of a run; parameters that an objective leaves out (an unused pooler) are allowed.

    Args:
        settings: says which mixed precision.
        cpu: stay on the CPU where there is a GPU.
    """
    handlers = [
        DistributedDataParallelKwargs(find_unused_parameters=True),
        InitProcessGroupKwargs(timeout=_PATIENCE),
    ]
    return Accelerator(mixed_precision=settings.mixed_precision, cpu=cpu, kwargs_handlers=handlers)


def run_training(
    model: torch.nn.Module,
    objective: Objective,
    batches: BatchSource,
    settings: LoopSettings,
    *,
    out_dir: Path,
    evaluate: Evaluate | None = None,
    progress: TrainingProgress | None = None,
    after_update: AfterUpdate | None = None,
    identity: Mapping[str, Any] | None = None,
    accelerator: Accelerator | None = None,
) -> TrainingResult:
    """Train a model in place; it ends on the accelerator's device, in evaluation mode.

    Args:
        model: what to train.
        objective: called with the model as Accelerate wrapped it, a batch on its device and the index of the update.
        batches: where the rows of each update come from.
        settings: see :class:`train.loop.loop_settings.LoopSettings`.
        out_dir: gets ``log.jsonl`` and ``checkpoints/``; a checkpoint found there is resumed.
        evaluate: called on the main process with the bare model, in evaluation mode and without gradients.
        progress: callbacks on the main process.
        after_update: called in every process after each update.
        identity: whatever else decides the result (teacher, evaluation rows), as JSON values; a run is only resumed
            when settings, batches and this are the same.
        accelerator: an existing one; by default :func:`default_accelerator`.

    Raises:
        ValueError: the run in ``out_dir`` is another one, the batch cannot be shared by the processes, the model would be
            sharded instead of replicated, or the loss is no longer finite.
    """
    accelerator = accelerator or default_accelerator(settings)
    if accelerator.distributed_type not in _REPLICATED:
        raise ValueError(f"{accelerator.distributed_type.value} shards the model; this loop trains replicas (DDP)")
    full_identity = dict(identity or {}) | settings.to_dict() | batches.identity()
    for name in WITHOUT_EFFECT_ON_RESULT:
        full_identity.pop(name, None)
    place = RunPlace(checkpoints=out_dir / "checkpoints", log=out_dir / "log.jsonl", identity=full_identity)
    run = TrainingRun(model, objective, batches, settings, place=place, accelerator=accelerator)
    state = run.run(evaluate=evaluate, after_update=after_update, watcher=progress or SilentProgress())
    return TrainingResult(
        steps=state.step,
        stopped_early=state.step < settings.steps,
        best_step=state.best_step,
        best_score=state.best_score,
        history=state.history,
        seconds=state.seconds,
    )
