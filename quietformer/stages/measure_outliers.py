"""Stages ``original-outliers`` and ``outliers``: largest values and kurtosis of named tensors, on held-out texts or images."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from deploy.data.example_draw import USUAL_SEED, draw
from deploy.data.image_data import each_image
from deploy.data.text_data import each_text
from deploy.files import write_atomically
from quietformer.progress import Job
from quietformer.recipe.original_checkpoint import original_folder, original_source
from quietformer.recipe.recipe import Recipe
from quietformer.stages.layout import CHECKPOINT, Variant, outliers
from quietformer.stages.run_data import held_out_data, held_out_inputs, images_source, reads_images
from quietformer.stages.stage import Run, Stage

_NUM_TEXTS = 128
"""Or images; drawn at random."""


class MeasureOutliers(Stage):
    """Outlier metrics of one of the models, on the same texts."""

    tools = ("torch", "transformers")

    def __init__(self, variant: Variant) -> None:
        self._variant: Variant = variant
        self.name = "outliers" if variant != "original" else "original-outliers"
        self.title = f"largest values and kurtosis of the {variant} model"

    def settings(self, recipe: Recipe) -> dict[str, Any]:
        """Texts are cut as for calibration."""
        return {"length": recipe.calibrate.length, "num_texts": _NUM_TEXTS, "drawn_with_seed": USUAL_SEED}

    def sources(self, recipe: Recipe) -> dict[str, str]:
        """The original checkpoint, and images."""
        checkpoint = original_source(recipe) if self._variant == "original" else {}
        return checkpoint | images_source(recipe)

    def inputs(self, recipe: Recipe) -> Sequence[str]:
        """Texts, and the made checkpoint."""
        return (*held_out_inputs(recipe), *(() if self._variant == "original" else (CHECKPOINT,)))

    def outputs(self, recipe: Recipe) -> Sequence[str]:
        """One JSON file."""
        return (outliers(self._variant),)

    def work(self, run: Run, job: Job) -> str:
        """Run the PyTorch model with its named tensors observed."""
        from quietformer.outlier_measurement import measure_checkpoint, measure_checkpoint_on_images

        folder = original_folder(run.recipe) if self._variant == "original" else run.path(CHECKPOINT)
        data = held_out_data(run)
        if reads_images(run.recipe):
            images = draw(each_image(data, purpose="evaluation", labelled=False), limit=_NUM_TEXTS).examples
            report = measure_checkpoint_on_images(folder, images, job=job)
        else:
            texts = draw(each_text(data), limit=_NUM_TEXTS).examples
            report = measure_checkpoint(folder, texts, length=run.recipe.calibrate.length, job=job)
        write_atomically(run.path(outliers(self._variant)), json.dumps(report.to_dict(), indent=1) + "\n")
        summary = report.summary()
        return (
            f"largest value {summary.largest:.0f}, largest FFN output {report.largest_ffn_output:.0f}, "
            f"average kurtosis {summary.average_kurtosis:.0f}"
        )
