"""The state of one training run in one process: updates, evaluations with the best state kept, early stop, checkpoints, log.

:func:`train.loop.training_loop.run_training` builds one and lets it run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast

from train.loop.loop_settings import LoopSettings
from train.loop.optimizer_update import BatchSource, Objective, UpdateFigures, Updater, remove_patch_, unpatched_forward
from train.loop.progress import Evaluation, ScalarLog, StepReport, StopWatch, TrainingProgress
from train.loop.training_state import (
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
"""The bare model, in evaluation mode and without gradients, to what it is worth."""
AfterUpdate = Callable[[int], None]
"""Index of the update just done; may change weights in place, as a function of them and the step alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPlace:
    """Where a run keeps what it resumes from, and what it must equal to be resumed."""

    checkpoints: Path
    log: Path
    identity: Mapping[str, Any]
    """Settings and data that decide the result; JSON values."""


class TrainingRun:
    """One process's part of a run.

    Raises:
        ValueError: the batch cannot be shared by the processes, or nothing is trainable.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        objective: Objective,
        batches: BatchSource,
        settings: LoopSettings,
        *,
        place: RunPlace,
        accelerator: Accelerator,
    ) -> None:
        self.model, self.settings, self.place, self.accelerator = model, settings, place, accelerator
        self.names: dict[torch.Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
        self.updater = Updater(model, objective, batches, settings, accelerator=accelerator)
        self.state = RunProgress()
        self.best: Tensors | None = None

    def run(
        self, *, evaluate: Evaluate | None, after_update: AfterUpdate | None, watcher: TrainingProgress
    ) -> RunProgress:
        """Train from the last checkpoint, or from the start, to the end; the model is left in its best state.

        Raises:
            ValueError: the checkpoint is another run's, or the loss is no longer finite.
        """
        self._resume()
        settings, state = self.settings, self.state
        if self.accelerator.is_main_process:
            self.log, self.watcher = ScalarLog(self.place.log, resumed_step=state.step), watcher
            watcher.on_start(step=state.step, steps=settings.steps)
        self.clock = StopWatch(state.seconds)
        self.model.train(settings.dropout)
        if state.step == 0 and settings.evaluate_at_start and evaluate is not None:
            self._evaluate(evaluate)
        state.finished = state.finished or state.step == settings.steps
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
        return state

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
        path = latest_checkpoint(self.place.checkpoints)
        if path is None:
            return
        stored = load_checkpoint(path)
        refuse_other_run(path, stored=stored.identity, wanted=self.place.identity)
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
                identity=self.place.identity,
                model=model_tensors(self.model),
                optimizer=optimizer_tensors(self.updater.optimizer, self.names),
                best=self.best,
            )
            save_checkpoint(self.place.checkpoints, checkpoint)
        self.accelerator.wait_for_everyone()
        self.clock.lap()


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
