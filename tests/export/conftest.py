"""Exports of tiny checkpoints, each made once per test session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedModel

from export.to_onnx import ExportReport, export_checkpoint
from tests.export.tiny_checkpoints import settings, tiny_model, write_checkpoint
from train.checkpoints.checkpoint import load


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """A checkpoint and the graph made from it."""

    checkpoint: Path
    path: Path
    report: ExportReport
    model: PreTrainedModel
    """The checkpoint, loaded."""


ExportTiny = Callable[..., Exported]


@pytest.fixture(scope="session")
def export_tiny(tmp_path_factory: pytest.TempPathFactory) -> ExportTiny:
    """``export_tiny(softmax, gate, model={…}, **options)``; equal arguments share one export."""
    made: dict[str, Exported] = {}

    def export(softmax: str = "vanilla", gate: str = "none", *, model: Any = None, **options: Any) -> Exported:
        options = {"lowering": "folded", **options}
        key = repr((softmax, gate, model, sorted(options.items())))
        if key not in made:
            folder = tmp_path_factory.mktemp("export")
            tiny = tiny_model(settings(softmax, gate), **(model or {}))
            checkpoint = write_checkpoint(tiny, folder / "checkpoint")
            out = folder / "graph" / "model.onnx"
            report = export_checkpoint(checkpoint, out, **options)
            made[key] = Exported(checkpoint=checkpoint, path=out, report=report, model=load(checkpoint))
        return made[key]

    return export
