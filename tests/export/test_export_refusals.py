"""What an export refuses, and that a refusal leaves earlier files as they were."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from export import parity
from export.to_onnx import export_checkpoint
from tests.export.conftest import ExportTiny
from tests.export.tiny_checkpoints import POSITIONS, tiny_model, write_checkpoint

ONE_LAYER = {"num_layers": 1}


@pytest.mark.parametrize("opset", [16, 24])
def test_other_opsets_are_refused(tmp_path: Path, opset: int) -> None:
    with pytest.raises(ValueError, match=f"opset is {opset}; expected 17 to 23"):
        export_checkpoint(tmp_path, tmp_path / "model.onnx", opset=opset)


def test_a_length_above_the_positions_is_refused(export_tiny: ExportTiny, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"length is {POSITIONS + 1}; expected 1 to {POSITIONS}"):
        export_checkpoint(export_tiny(model=ONE_LAYER).checkpoint, tmp_path / "model.onnx", length=POSITIONS + 1)


def test_an_existing_graph_is_kept_unless_forced(export_tiny: ExportTiny, tmp_path: Path) -> None:
    out = tmp_path / "model.onnx"
    out.write_text("mine")
    with pytest.raises(FileExistsError, match="pass --force to replace it"):
        export_checkpoint(export_tiny(model=ONE_LAYER).checkpoint, out)
    assert out.read_text() == "mine"


def test_another_tokenizer_beside_the_graph_is_kept_unless_forced(export_tiny: ExportTiny, tmp_path: Path) -> None:
    other = tmp_path / "tokenizer.json"
    other.write_text("{}")
    with pytest.raises(FileExistsError, match=r"tokenizer\.json exists; pass --force"):
        export_checkpoint(export_tiny(model=ONE_LAYER).checkpoint, tmp_path / "model.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]


def test_a_checkpoint_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tiny_model(num_layers=1), tmp_path / "checkpoint")
    (checkpoint / "tokenizer.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"holds no tokenizer\.json"):
        export_checkpoint(checkpoint, tmp_path / "model.onnx")


def test_a_failed_check_leaves_earlier_files_untouched(
    tmp_path: Path, export_tiny: ExportTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parity, "TOLERANCE", 0.0)
    for name in ("model.onnx", "tokenizer.json"):
        (tmp_path / name).write_text(json.dumps(name))
    with pytest.raises(ValueError, match=r"disagree at batch 1, length 7: .* allowed is 0"):
        export_checkpoint(export_tiny(model=ONE_LAYER).checkpoint, tmp_path / "model.onnx", force=True)
    assert {path.name: json.loads(path.read_text()) for path in tmp_path.iterdir()} == {
        "model.onnx": "model.onnx",
        "tokenizer.json": "tokenizer.json",
    }
