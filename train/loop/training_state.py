"""Checkpoints of a training run: a folder per checkpoint, complete or absent, tensors in safetensors, the rest in JSON.

A checkpoint ``step-00000100`` holds ``model.safetensors``, ``optimizer.safetensors`` (``NAME/exp_avg`` and so on, by parameter
name), ``best.safetensors`` (when an evaluation has chosen a best state) and ``state.json``. It is written under a
temporary name, flushed to disk and renamed, and only then is its predecessor deleted: a kill at any moment leaves a run
that can be resumed. There is no generator state, because :func:`train.loop.schedule.update_seed` makes one unnecessary.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]

_SCHEMA = 1
_PREFIX = "step-"
_PARTIAL = ".partial-"


@dataclass(kw_only=True, slots=True)
class RunProgress:
    """Everything but tensors that a run knows about itself; plain JSON values."""

    step: int = 0
    """Updates done."""
    seconds: float = 0.0
    """Wall-clock time spent, over all sessions of the run."""
    finished: bool = False
    """Whether the run has ended, by its steps or early."""
    best_step: int | None = None
    """Updates after which the best evaluation was made."""
    best_score: float | None = None
    """Score of that evaluation; higher is better."""
    evaluations_since_best: int = 0
    """Evaluations made since then."""
    history: list[dict[str, float]] = field(default_factory=list)
    """One entry per evaluation: ``step``, ``score`` and the figures behind it."""
    scaler: dict[str, float] = field(default_factory=dict)
    """State of the loss scaler of fp16 training."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """One checkpoint, as written and read."""

    progress: RunProgress
    identity: Mapping[str, Any]
    """Settings and data the run depends on; JSON values."""
    model: Tensors
    optimizer: Tensors
    best: Tensors | None


def model_tensors(model: torch.nn.Module) -> Tensors:
    """Every parameter and persistent buffer once, by name, not copied; a tied parameter appears under its first name."""
    persistent = model.state_dict(keep_vars=True)
    tensors: Tensors = {name: parameter.detach() for name, parameter in model.named_parameters()}
    return tensors | {name: buffer for name, buffer in model.named_buffers() if name in persistent}


def tensors_sha256(model: torch.nn.Module) -> str:
    """Hex sha256 over names and bytes of :func:`model_tensors`: the identity of a model's weights."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model_tensors(model).items()):
        digest.update(name.encode())
        digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def restore_model_(model: torch.nn.Module, tensors: Tensors) -> None:
    """Copy tensors from :func:`model_tensors` into a model, in place.

    Raises:
        ValueError: names or shapes are not the model's.
    """
    targets = model_tensors(model)
    if different := sorted(set(targets) ^ set(tensors)):
        where = "the model" if different[0] in targets else "the stored state"
        raise ValueError(f"stored state and model differ: '{different[0]}' is only in {where}")
    for name, target in targets.items():
        if target.shape != tensors[name].shape:
            raise ValueError(
                f"stored '{name}' has shape {tuple(tensors[name].shape)}; the model's is {tuple(target.shape)}"
            )
        target.copy_(tensors[name])


def optimizer_tensors(optimizer: torch.optim.Optimizer, names: Mapping[torch.Tensor, str]) -> Tensors:
    """The optimizer's state as ``NAME/KEY`` tensors, not copied; parameters that never had a gradient are absent."""
    return {
        f"{names[parameter]}/{key}": value
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
    }


def restore_optimizer_(optimizer: torch.optim.Optimizer, tensors: Tensors, names: Mapping[torch.Tensor, str]) -> None:
    """Load tensors from :func:`optimizer_tensors` into an optimizer over the same parameters, in place."""
    by_name: dict[str, dict[str, torch.Tensor]] = {}
    for key, value in tensors.items():
        name, _, entry = key.rpartition("/")
        by_name.setdefault(name, {})[entry] = value
    ordered = [names[parameter] for group in optimizer.param_groups for parameter in group["params"]]
    state = {index: by_name[name] for index, name in enumerate(ordered) if name in by_name}
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write ``folder/step-N`` and delete older checkpoints once it is in place."""
    final = folder / f"{_PREFIX}{checkpoint.progress.step:08d}"
    partial = folder / f"{_PARTIAL}{final.name}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    files = {"model": checkpoint.model, "optimizer": checkpoint.optimizer, "best": checkpoint.best}
    for name, tensors in files.items():
        if tensors is not None:
            save_file({key: value.contiguous() for key, value in tensors.items()}, partial / f"{name}.safetensors")
    state = {"schema": _SCHEMA, "identity": dict(checkpoint.identity), "progress": asdict(checkpoint.progress)}
    (partial / "state.json").write_text(json.dumps(state, indent=1) + "\n")
    for path in partial.iterdir():
        _flush(path)
    if final.exists():  # resumed from an older one that outlived a failed deletion
        shutil.rmtree(final)
    partial.rename(final)
    _flush(folder)
    for path in folder.iterdir():
        if path != final and path.name.startswith((_PREFIX, _PARTIAL)):
            shutil.rmtree(path)
    return final


def latest_checkpoint(folder: Path) -> Path | None:
    """The checkpoint of a run that is furthest on, if there is one."""
    return max(folder.glob(f"{_PREFIX}*"), default=None)


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint written by :func:`save_checkpoint`.

    Raises:
        ValueError: a file is damaged, or of another version of the format.
    """
    try:
        state = json.loads((path / "state.json").read_text())
        if state["schema"] != _SCHEMA:
            raise ValueError(f"{path} has schema {state['schema']}; this version reads {_SCHEMA}")
        best = path / "best.safetensors"
        return Checkpoint(
            progress=RunProgress(**state["progress"]),
            identity=state["identity"],
            model=load_file(path / "model.safetensors"),
            optimizer=load_file(path / "optimizer.safetensors"),
            best=load_file(best) if best.exists() else None,
        )
    except (OSError, KeyError, TypeError, json.JSONDecodeError, SafetensorError) as err:
        raise ValueError(f"{path} is damaged ({err}); delete it to start the run again") from err


def refuse_other_run(path: Path, *, stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Guard a resume.

    Raises:
        ValueError: the stored run differs in a setting or in its data; the first difference is named.
    """
    for key in sorted(set(stored) | set(wanted)):
        if stored.get(key) != wanted.get(key):
            raise ValueError(
                f"{path} was made with {key} = {stored.get(key)!r}, this run has {wanted.get(key)!r}; "
                "use another folder, or delete it to start again"
            )


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
