"""The training loop, shared by retrofit and by training from scratch, on Accelerate.

What is learnt is a callable, the objective: it maps a model and a batch to a loss and its parts. The loop owns the rest: updates (see
:mod:`train.optimizer_update`), evaluation with the best state kept, early stop, checkpoints and exact resume, reports
and the log. Every process of ``accelerate launch`` runs the same code on a replica; only the main process evaluates and writes.

A killed and resumed run equals the uninterrupted one bit for bit on a CPU: batches and random draws are functions of the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, DistributedType, broadcast

from train.loop_settings import WITHOUT_EFFECT_ON_RESULT, LoopSettings
from train.optimizer_update import BatchSource, Objective, UpdateFigures, Updater, remove_patch_, unpatched_forward
from train.progress import Evaluation, ScalarLog, SilentProgress, StepReport, StopWatch, TrainingProgress
from train.training_state import (
    Checkpoint,
    RunProgress,
    Tensors,
    latest_checkpoint,
    load_checkpoint,
    model_tensors,
    optimizer_tensors,
    refuse_other_run,
    restore_model_,
    restore_optimizer_,
    save_checkpoint,
)

Evaluate = Callable[[torch.nn.Module], Evaluation]
AfterUpdate = Callable[[int], None]
"""Index of the update just done; may change weights in place, as a function of them and the step alone."""

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
    unused = DistributedDataParallelKwargs(find_unused_parameters=True)
    return Accelerator(mixed_precision=settings.mixed_precision, cpu=cpu, kwargs_handlers=[unused])


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
        settings: see :class:`train.loop_settings.LoopSettings`.
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
    run = _Run(model, objective, batches, settings, accelerator=accelerator)
    run.checkpoints = out_dir / "checkpoints"
    run.identity = dict(identity or {}) | settings.to_dict() | batches.identity()
    for name in WITHOUT_EFFECT_ON_RESULT:
        run.identity.pop(name, None)
    return run.run(
        out_dir / "log.jsonl", evaluate=evaluate, after_update=after_update, watcher=progress or SilentProgress()
    )


class _Run:
    """The state of one run in one process."""

    checkpoints: Path
    identity: dict[str, Any]

    def __init__(
        self,
        model: torch.nn.Module,
        objective: Objective,
        batches: BatchSource,
        settings: LoopSettings,
        *,
        accelerator: Accelerator,
    ) -> None:
        self.model, self.settings, self.accelerator = model, settings, accelerator
        self.names: dict[torch.Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
        self.updater = Updater(model, objective, batches, settings, accelerator=accelerator)
        self.state = RunProgress()
        self.best: Tensors | None = None

    def run(
        self,
        log_path: Path,
        *,
        evaluate: Evaluate | None,
        after_update: AfterUpdate | None,
        watcher: TrainingProgress,
    ) -> TrainingResult:
        self._resume()
        settings, state = self.settings, self.state
        if self.accelerator.is_main_process:
            self.log, self.watcher = ScalarLog(log_path, resumed_step=state.step), watcher
            watcher.on_start(step=state.step, steps=settings.steps)
        self.clock = StopWatch(state.seconds)
        self.model.train(settings.dropout)
        if state.step == 0 and settings.evaluate_at_start and evaluate is not None:
            self._evaluate(evaluate)
        while not state.finished:
            figures = self.updater.update(state.step)
            if after_update is not None:
                after_update(state.step)
            state.step += 1
            ends = state.step == settings.steps
            if ends or state.step % settings.log_every == 0:
                self._report(figures)
            if evaluate is not None and (ends or _is_due(state.step, settings.evaluate_every)):
                self._evaluate(evaluate)
            out_of_patience = settings.patience is not None and state.evaluations_since_best >= settings.patience
            state.finished = ends or out_of_patience
            state.seconds = self.clock.total()
            if settings.checkpoint_every and (state.finished or _is_due(state.step, settings.checkpoint_every)):
                self._save()
        if self.best is not None:
            restore_model_(self.model, self.best)
        remove_patch_(self.model)
        self.model.eval()
        return TrainingResult(
            steps=state.step,
            stopped_early=state.step < settings.steps,
            best_step=state.best_step,
            best_score=state.best_score,
            history=state.history,
            seconds=state.seconds,
        )

    def _report(self, figures: UpdateFigures) -> None:
        step, settings = self.state.step, self.settings
        try:
            loss, parts, largest = self.updater.read(figures)
        except ValueError as err:
            raise ValueError(f"step {step}: {err}") from err
        if not self.accelerator.is_main_process:
            return
        rows = settings.batch_size * (step % settings.log_every or settings.log_every)
        report = StepReport(
            step=step,
            steps=settings.steps,
            loss=loss,
            parts=parts,
            largest_activation=largest,
            learning_rate=figures.learning_rate,
            gradient_norm=None if figures.gradient_norm is None else float(figures.gradient_norm),
            rows_per_second=rows / self.clock.lap(),
        )
        self.log.step(report)
        self.watcher.on_step(report)

    def _evaluate(self, evaluate: Evaluate) -> None:
        state, is_main = self.state, self.accelerator.is_main_process
        evaluation = Evaluation(score=math.nan, figures={})
        if is_main:
            self.model.eval()
            with torch.no_grad(), unpatched_forward(self.model):
                evaluation = evaluate(self.model)
            self.model.train(self.settings.dropout)
            state.history.append({"step": state.step, "score": evaluation.score, **evaluation.figures})
        shared = torch.tensor([evaluation.score], dtype=torch.float32, device=self.accelerator.device)
        score = float(broadcast(shared))
        is_best = not math.isnan(score) and (state.best_score is None or score > state.best_score)
        if is_best:
            state.best_step, state.best_score, state.evaluations_since_best = state.step, score, 0
            self.best = {name: tensor.clone() for name, tensor in model_tensors(self.model).items()}
        else:
            state.evaluations_since_best += 1
        if is_main:
            self.log.evaluation(evaluation, step=state.step)
            self.watcher.on_evaluation(evaluation, step=state.step, is_best=is_best)
        self.clock.lap()

    def _resume(self) -> None:
        path = latest_checkpoint(self.checkpoints)
        if path is None:
            return
        stored = load_checkpoint(path)
        refuse_other_run(path, stored=stored.identity, wanted=self.identity)
        restore_model_(self.model, stored.model)
        restore_optimizer_(self.updater.optimizer, stored.optimizer, self.names)
        self.state, self.best = stored.progress, stored.best
        if self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(stored.progress.scaler)

    def _save(self) -> None:
        if self.accelerator.is_main_process:
            if self.accelerator.scaler is not None:
                self.state.scaler = self.accelerator.scaler.state_dict()
            checkpoint = Checkpoint(
                progress=self.state,
                identity=self.identity,
                model=model_tensors(self.model),
                optimizer=optimizer_tensors(self.updater.optimizer, self.names),
                best=self.best,
            )
            save_checkpoint(self.checkpoints, checkpoint)
        self.accelerator.wait_for_everyone()
        self.clock.lap()


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
