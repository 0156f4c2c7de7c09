"""Stages ``original-export`` and ``export``: the checked ONNX graph of each model, its tokenizer beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from deploy.files import write_atomically
from quietformer.progress import Job
from quietformer.recipe import Recipe
from quietformer.stages.layout import CHECKPOINT, Variant, export_facts, float_graph
from quietformer.stages.original_checkpoint import original_folder, original_source
from quietformer.stages.run_data import companions
from quietformer.stages.stage import Run, Stage


class ExportGraph(Stage):
    """PyTorch to ONNX for one of the models."""

    tools = ("torch", "transformers", "onnx", "onnxscript", "onnxruntime")

    def __init__(self, variant: Variant) -> None:
        self._variant: Variant = variant
        self.name = "export" if variant != "original" else "original-export"
        self.title = f"{variant} model to ONNX"

    def settings(self, recipe: Recipe) -> dict[str, Any]:
        """The recipe's table."""
        return recipe.export.model_dump(mode="json")

    def sources(self, recipe: Recipe) -> dict[str, str]:
        """The original checkpoint."""
        return original_source(recipe) if self._variant == "original" else {}

    def inputs(self, recipe: Recipe) -> Sequence[str]:
        """The made checkpoint."""
        return (CHECKPOINT,) if self._variant != "original" else ()

    def outputs(self, recipe: Recipe) -> Sequence[str]:
        """Graph, weights outside of it where they are large, tokenizer, and what the checks found."""
        graph = float_graph(self._variant)
        return (graph, f"{graph}.*.data", *companions(recipe, self._variant), export_facts(self._variant))

    def work(self, run: Run, job: Job) -> str:
        """Lower, trace, write, check."""
        from export.to_onnx import export_checkpoint

        settings = run.recipe.export
        report = export_checkpoint(
            original_folder(run.recipe) if self._variant == "original" else run.path(CHECKPOINT),
            run.path(float_graph(self._variant)),
            length=None if settings.length == "dynamic" else settings.length,
            lowering=settings.lowering,
            opset=settings.opset,
            force=True,
            progress=job.tell,
        )
        facts = {
            "opset": report.opset,
            "nodes": report.nodes,
            "parity": [
                {"batch": row.batch, "length": row.length, "max_difference": row.max_difference}
                for row in report.parity
            ],
        }
        write_atomically(run.path(export_facts(self._variant)), json.dumps(facts, indent=1) + "\n")
        return str(report)
