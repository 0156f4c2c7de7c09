"""Train a model on a labelled task, from scratch or from a checkpoint: objective, penalty, validation and loop put together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from transformers import PreTrainedModel

from train.families.known_families import TensorKind
from train.loop.loop_settings import LoopSettings
from train.loop.optimizer_update import BatchSource
from train.loop.progress import TrainingProgress
from train.loop.training_loop import TrainingResult, default_accelerator, run_training
from train.loop.training_run import Evaluate
from train.loop.training_state import tensors_sha256
from train.objectives.learning_task import Learning, LearningTask
from train.objectives.penalty import PenaltySettings
from train.observation.named_tensors import named_tensors


def learn(
    model: PreTrainedModel,
    task: LearningTask,
    batches: BatchSource,
    settings: LoopSettings,
    *,
    out_dir: Path,
    validation: Evaluate | None = None,
    penalty: PenaltySettings | None = None,
    identity: Mapping[str, Any] | None = None,
    progress: TrainingProgress | None = None,
    accelerator: Accelerator | None = None,
) -> TrainingResult:
    """Train ``model`` in place; a run that was stopped resumes from ``out_dir``.

    Args:
        model: converted (vanilla settings included).
        task: what it learns.
        batches: training batches.
        settings: of the loop; its ``penalty_weight`` belongs to ``penalty``.
        out_dir: gets ``log.jsonl`` and ``checkpoints/``.
        validation: evaluates the bare model; the best state by it is kept.
        penalty: outlier penalty on named tensors; ``None`` for none.
        identity: what else decides the result.
        progress: callbacks on the main process.
        accelerator: an existing one; by default :func:`train.loop.training_loop.default_accelerator`.

    Raises:
        ValueError: as :func:`train.loop.training_loop.run_training`, or a penalty without weight or the reverse.
    """
    if (penalty is None) != (settings.penalty_weight == 0):
        raise ValueError("penalty and penalty_weight belong together; give both or neither")
    watched: Iterable[TensorKind] = ("ffn_output",) if penalty is None else penalty.relative_widths
    accelerator = accelerator or default_accelerator(settings)
    full_identity = {"start_sha256": tensors_sha256(model), **(identity or {})}
    with ExitStack() as hooks:
        tensors: Mapping[str, torch.Tensor] = hooks.enter_context(named_tensors(model, kinds=watched))
        return run_training(
            model,
            Learning(task, tensors, penalty=penalty),
            batches,
            settings,
            out_dir=out_dir,
            evaluate=validation,
            progress=progress,
            identity=full_identity,
            accelerator=accelerator,
        )
