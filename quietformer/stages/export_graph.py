"""Stages ``original-export`` and ``export``: the checked ONNX graph of each model, its tokenizer beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from deploy.files import write_atomically
from quietformer.progress import Job
from quietformer.recipe.original_checkpoint import original_folder, original_source
from quietformer.recipe.recipe import Recipe
from quietformer.stages.layout import CHECKPOINT, Variant, export_facts, float16_graph, float_graph
from quietformer.stages.run_data import companions
from quietformer.stages.stage import Run, Stage

if TYPE_CHECKING:
    from export.to_onnx import Dtype


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
        """Graphs, weights outside of them where they are large, tokenizer, and what the checks found."""
        graphs = [name for name in self._graphs(recipe).values() for name in (name, f"{name}.*.data")]
        return (*graphs, *companions(recipe, self._variant), export_facts(self._variant))

    def _graphs(self, recipe: Recipe) -> dict[Dtype, str]:
        graphs: dict[Dtype, str] = {"float32": float_graph(self._variant)}
        return graphs | ({"float16": float16_graph(self._variant)} if recipe.export.float16 else {})

    def work(self, run: Run, job: Job) -> str:
        """Lower, trace, write, check."""
        from export.to_onnx import export_checkpoint

        settings = run.recipe.export
        reports = {
            dtype: export_checkpoint(
                original_folder(run.recipe) if self._variant == "original" else run.path(CHECKPOINT),
                run.path(name),
                length=None if settings.length == "dynamic" else settings.length,
                lowering=settings.lowering,
                opset=settings.opset,
                dtype=dtype,
                force=True,
                progress=job.tell,
            )
            for dtype, name in self._graphs(run.recipe).items()
        }
        report = reports["float32"]
        facts = {
            "opset": report.opset,
            "nodes": report.nodes,
            "parity": [
                {"batch": row.batch, "length": row.length, "max_difference": row.max_difference}
                for row in report.parity
            ],
        }
        write_atomically(run.path(export_facts(self._variant)), json.dumps(facts, indent=1) + "\n")
        return "; ".join(map(str, reports.values()))
