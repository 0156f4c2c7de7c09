"""Checkpoints: complete or absent, exact, and bound to their run."""

from pathlib import Path

import pytest
import torch
from torch import nn

from train.loop.training_state import (
    Checkpoint,
    RunProgress,
    latest_checkpoint,
    load_checkpoint,
    model_tensors,
    optimizer_tensors,
    refuse_other_run,
    restore_model_,
    restore_optimizer_,
    save_checkpoint,
)


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3)
        self.norm = nn.BatchNorm1d(3)
        self.unused = nn.Linear(2, 2)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.table.weight
        self.register_buffer("cache", torch.zeros(2), persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.table(ids)))  # type: ignore[no-any-return]


def _trained() -> tuple[_Tied, torch.optim.AdamW]:
    model = _Tied()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.arange(5)).square().sum().backward()
        optimizer.step()
    return model, optimizer


def _checkpoint(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> Checkpoint:
    names: dict[torch.Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return Checkpoint(
        progress=RunProgress(step=step, history=[{"step": 1, "score": 0.1 + 0.2}], scaler={"scale": 4.0}),
        identity={"seed": 1},
        model=model_tensors(model),
        optimizer=optimizer_tensors(optimizer, names),
        best=model_tensors(model),
    )


def test_model_and_optimizer_come_back_bit_for_bit(tmp_path: Path) -> None:
    model, optimizer = _trained()
    stored = load_checkpoint(save_checkpoint(tmp_path, _checkpoint(3, model, optimizer)))
    fresh = _Tied()
    other = torch.optim.AdamW(fresh.parameters(), lr=0.1)
    restore_model_(fresh, stored.model)
    restore_optimizer_(other, stored.optimizer, {parameter: name for name, parameter in fresh.named_parameters()})
    for (name, one), (_, two) in zip(model.state_dict().items(), fresh.state_dict().items(), strict=True):
        assert torch.equal(one, two), name
    assert fresh.head.weight is fresh.table.weight
    mine, theirs = optimizer.state_dict()["state"], other.state_dict()["state"]
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[i][key], theirs[i][key]) for i in mine for key in mine[i])
    assert stored.progress == _checkpoint(3, model, optimizer).progress


def test_a_newer_checkpoint_replaces_the_older_and_leftovers_of_a_kill(tmp_path: Path) -> None:
    model, optimizer = _trained()
    save_checkpoint(tmp_path, _checkpoint(9, model, optimizer))
    (tmp_path / ".partial-step-00000010").mkdir()
    save_checkpoint(tmp_path, _checkpoint(10, model, optimizer))
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000010"]


def test_a_partial_checkpoint_is_never_resumed(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path / "absent") is None
    (tmp_path / ".partial-step-00000010").mkdir()
    assert latest_checkpoint(tmp_path) is None


@pytest.mark.parametrize("file", ["state.json", "model.safetensors", "optimizer.safetensors"])
def test_a_truncated_file_is_named_as_damage(tmp_path: Path, file: str) -> None:
    path = save_checkpoint(tmp_path, _checkpoint(1, *_trained()))
    content = (path / file).read_bytes()
    (path / file).write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match="is damaged"):
        load_checkpoint(path)


def test_a_state_of_another_model_is_refused() -> None:
    tensors = model_tensors(nn.Linear(2, 3))
    with pytest.raises(ValueError, match=r"'weight' has shape \(3, 2\); the model's is \(4, 2\)"):
        restore_model_(nn.Linear(2, 4), tensors)
    with pytest.raises(ValueError, match="'bias' is only in the stored state"):
        restore_model_(nn.Linear(2, 3, bias=False), tensors)


def test_another_run_is_refused_by_the_first_difference() -> None:
    with pytest.raises(ValueError, match="seed = 1, this run has 2"):
        refuse_other_run(Path("run"), stored={"seed": 1, "steps": 4}, wanted={"seed": 2, "steps": 4})
