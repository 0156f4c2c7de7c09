"""What a training run is measured by while it runs: the task in float and in simulated W8A8, and outlier metrics, on fixed batches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from train.batches.text_batches import Batch
from train.loop.progress import Evaluation
from train.objectives.learning_task import LearningTask
from train.observation.outliers import measure_outliers
from train.simulation.fake_quant import simulated
from train.simulation.quantization_places import PROFILE_NAMES, ProfileName
from train.simulation.quantizer import RANGE_METHODS, WEIGHT_RANGES, RangeMethod, WeightRange, check_bits


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidationSettings:
    """The simulated integer model of an evaluation.

    Raises:
        ValueError: an unknown name, a profile twice, or bits out of range.
    """

    profiles: tuple[ProfileName, ...] = ("paper",)
    """One evaluation in W8A8 each; none for float alone."""
    weights: WeightRange = "minmax"
    method: RangeMethod = "running-minmax"
    weight_bits: int = 8
    activation_bits: int = 8
    outlier_batches: int = 1
    """Validation batches whose infinity norm and kurtosis are measured; 0 for none."""

    def __post_init__(self) -> None:
        """Check every value."""
        named = [(profile, PROFILE_NAMES, "profile") for profile in self.profiles]
        for name, known, what in (
            *named,
            (self.weights, WEIGHT_RANGES, "weights"),
            (self.method, RANGE_METHODS, "method"),
        ):
            if name not in known:
                raise ValueError(f"unknown {what} '{name}'; known are {', '.join(known)}")
        if len(set(self.profiles)) != len(self.profiles):
            raise ValueError(f"profiles {', '.join(self.profiles)} repeat one another")
        if self.outlier_batches < 0:
            raise ValueError(f"outlier_batches is {self.outlier_batches}; expected at least 0")
        check_bits(self.weight_bits, what="weight_bits")
        check_bits(self.activation_bits, what="activation_bits")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self) | {"profiles": list(self.profiles)}


class Validation:
    """Evaluates a model on the same batches every time; the score is the float model's."""

    def __init__(
        self,
        task: LearningTask,
        batches: Sequence[Batch],
        *,
        calibration: Sequence[Batch],
        settings: ValidationSettings,
    ) -> None:
        """Bind the data.

        Args:
            task: what is measured.
            batches: held out, on the CPU.
            calibration: training batches that the simulated models take their ranges from.
            settings: which simulated models.
        """
        self._task, self._batches, self._calibration, self._settings = task, batches, calibration, settings

    def __call__(self, model: torch.nn.Module) -> Evaluation:
        """``float_LOSS``, ``PROFILE_LOSS`` and so on by the task's figures; ``max_inf_norm``, ``average_kurtosis``, and both by kind of tensor."""
        assert isinstance(model, PreTrainedModel)
        held_out = self._task.figures(model, self._batches)
        figures = {f"float_{name}": value for name, value in held_out.figures.items()}
        for profile in self._settings.profiles:
            with simulated(
                model,
                [self._task.inputs(batch) for batch in self._calibration],
                profile=profile,
                weights=self._settings.weights,
                method=self._settings.method,
                weight_bits=self._settings.weight_bits,
                activation_bits=self._settings.activation_bits,
            ):
                rounded = self._task.figures(model, self._batches)
            figures |= {f"{profile}_{name}": value for name, value in rounded.figures.items()}
        if self._settings.outlier_batches:
            figures |= dict(self._outliers(model))
        return Evaluation(score=held_out.score, figures=figures)

    def _outliers(self, model: PreTrainedModel) -> Iterator[tuple[str, float]]:
        batches = [self._task.inputs(batch) for batch in self._batches[: self._settings.outlier_batches]]
        report = measure_outliers(model, batches)
        for kind in (None, *report.kinds):
            summary, prefix = report.summary(kind), f"{kind}." if kind else ""
            yield f"{prefix}max_inf_norm", summary.max_inf_norm
            if not math.isnan(summary.average_kurtosis):
                yield f"{prefix}average_kurtosis", summary.average_kurtosis
