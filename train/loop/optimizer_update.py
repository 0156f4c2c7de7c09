"""One optimizer update: forward and backward over the parts of a batch, ramped penalty, clipping, AdamW."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from accelerate import Accelerator

from train.batches.text_batches import Batch
from train.loop.loop_settings import LoopSettings
from train.loop.schedule import learning_rate_factor, ramp_factor, update_seed

_PATCHED = "_original_forward"  # where Accelerate keeps the forward that it hides


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What an objective returns for one batch; every value is a 0-d tensor."""

    loss: torch.Tensor
    """Minimised as it is."""
    penalty: torch.Tensor | None = None
    """Minimised times the ramped ``penalty_weight``."""
    parts: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Terms to report; the same names for every batch."""
    largest_activation: torch.Tensor | None = None
    """Largest absolute value on the observed tensors."""


Objective = Callable[[torch.nn.Module, Batch, int], Outcome]
"""Model, batch and index of the update to what is minimised."""


class BatchSource(Protocol):
    """Batches addressed by step; :class:`train.batches.text_batches.TextBatches` is one."""

    def batch(self, step: int, *, part: int = 0, num_parts: int = 1) -> Batch:
        """One of ``num_parts`` equal parts of the rows of update ``step``."""

    def identity(self) -> dict[str, Any]:
        """What decides the batches, as JSON values."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateFigures:
    """Figures of one update on this process, still on the device; :meth:`Updater.read` brings them home."""

    names: list[str]
    values: torch.Tensor
    """The parts named by ``names`` and the loss, averaged over accumulated parts; float32, (names + 1,)."""
    largest_activation: torch.Tensor | None
    gradient_norm: torch.Tensor | None
    learning_rate: float


def parameter_groups(model: torch.nn.Module, settings: LoopSettings) -> list[dict[str, Any]]:
    """Trainable parameters as AdamW groups: biases never decay, other vectors (norms) only with ``decay_norms``.

    Raises:
        ValueError: the model has no trainable parameter.
    """
    decayed: list[torch.nn.Parameter] = []
    kept: list[torch.nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            decays = not name.endswith("bias") and (parameter.ndim > 1 or settings.decay_norms)
            (decayed if decays else kept).append(parameter)
    if not decayed and not kept:
        raise ValueError("the model has no trainable parameter; every requires_grad is False")
    groups = ((decayed, settings.weight_decay), (kept, 0.0))
    return [{"params": parameters, "weight_decay": decay} for parameters, decay in groups if parameters]


class Updater:
    """Owns the optimizer and the wrapped model of a run.

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
        accelerator: Accelerator,
    ) -> None:
        self._num_parts = settings.accumulation * accelerator.num_processes
        if settings.batch_size % self._num_parts:
            raise ValueError(
                f"batch_size {settings.batch_size} cannot be shared by {accelerator.num_processes} processes "
                f"in {settings.accumulation} parts each"
            )
        self._objective, self._batches, self._settings = objective, batches, settings
        self._accelerator = accelerator
        self._trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        groups = parameter_groups(model, settings)
        self.optimizer = torch.optim.AdamW(groups, lr=settings.learning_rate, betas=settings.betas, fused=True)
        self._model, self._wrapped_optimizer = accelerator.prepare(model, self.optimizer)

    def update(self, step: int) -> UpdateFigures:
        """Do update ``step``."""
        settings, accelerator = self._settings, self._accelerator
        rate = settings.learning_rate * learning_rate_factor(
            step,
            steps=settings.steps,
            warmup_steps=settings.warmup_steps,
            decay=settings.decay,
            final_fraction=settings.final_fraction,
        )
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        weight = settings.penalty_weight * ramp_factor(step, ramp_steps=settings.penalty_ramp_steps)
        outcomes: list[Outcome] = []
        rows: list[torch.Tensor] = []
        for turn in range(settings.accumulation):
            part = turn * accelerator.num_processes + accelerator.process_index
            torch.manual_seed(update_seed(settings.seed, step=step, part=part))
            batch = self._batches.batch(step, part=part, num_parts=self._num_parts)
            batch = {name: tensor.to(accelerator.device) for name, tensor in batch.items()}
            last = turn == settings.accumulation - 1
            with nullcontext() if last else accelerator.no_sync(self._model):
                outcome = self._objective(self._model, batch, step)
                loss = outcome.loss if outcome.penalty is None else outcome.loss + weight * outcome.penalty
                accelerator.backward(loss / settings.accumulation)
            outcomes.append(outcome)
            rows.append(torch.stack([value.detach().float() for value in (*outcome.parts.values(), loss)]))
        norm = None
        if settings.clip_norm is not None:
            norm = accelerator.clip_grad_norm_(self._trained, settings.clip_norm)
        self._wrapped_optimizer.step()
        self._wrapped_optimizer.zero_grad(set_to_none=True)
        peaks = [outcome.largest_activation for outcome in outcomes if outcome.largest_activation is not None]
        return UpdateFigures(
            names=list(outcomes[0].parts),
            values=torch.stack(rows).mean(0),
            largest_activation=torch.stack(peaks).detach().max() if peaks else None,
            gradient_norm=norm,
            learning_rate=rate,
        )

    def read(self, figures: UpdateFigures) -> tuple[float, dict[str, float], float | None]:
        """Loss, parts and largest activation over all processes, which must all call this.

        Raises:
            ValueError: the loss is not finite.
        """
        *parts, loss = self._accelerator.reduce(figures.values, reduction="mean").tolist()
        named = dict(zip(figures.names, parts, strict=True))
        if not math.isfinite(loss):
            terms = ", ".join(f"{name} {value:g}" for name, value in named.items())
            raise ValueError(f"loss became {loss} ({terms}); lower the learning rate or the penalty's weight")
        largest = None
        if figures.largest_activation is not None:
            largest = float(self._accelerator.gather(figures.largest_activation.reshape(1)).max())
        return loss, named, largest


@contextmanager
def unpatched_forward(model: torch.nn.Module) -> Iterator[None]:
    """Evaluate in the weights' own precision: Accelerate's autocast is an instance attribute that hides ``forward``."""
    patched = model.__dict__.pop("forward") if _PATCHED in model.__dict__ else None
    try:
        yield
    finally:
        if patched is not None:
            model.__dict__["forward"] = patched


def remove_patch_(model: torch.nn.Module) -> None:
    """Take Accelerate's autocast off; its own ``unwrap_model`` would take transformers' decorators off as well."""
    if model.__dict__.pop(_PATCHED, None) is not None:
        del model.__dict__["forward"]
