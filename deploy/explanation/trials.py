"""Graphs with some sites in float, as ``quantize --exclude`` would write them, and the task's score of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from deploy.calibration.calibration_cache import CalibrationCache
from deploy.calibration.quant_params import QuantParams
from deploy.explanation.literal_session import literal_session
from deploy.graphs.graph_structure import read_outline
from deploy.graphs.profiles import Profile
from deploy.graphs.site_choice import SiteChoice, literal_pattern
from deploy.quantization.bits import Bits
from deploy.quantization.quantize import quantize_model
from deploy.quantization.stored_weights import WeightRanges
from deploy.tasks.task import Task


@dataclass(frozen=True, kw_only=True, slots=True)
class Trials:
    """What stays the same from one evaluation to the next."""

    path: Path
    """The float graph."""
    cache: CalibrationCache
    task: Task
    profile: Profile
    weights: WeightRanges
    choice: SiteChoice
    """What is changed about the profile's sites to begin with."""
    bits: Bits
    threads: int | None
    """Of ONNX Runtime."""

    def quantized(self, float_sites: Sequence[str] = ()) -> onnx.ModelProto:
        """The graph that ``quantize --exclude`` writes for these sites; constants that stay float are references to ``path``."""
        choice = replace(self.choice, exclude=(*self.choice.exclude, *map(literal_pattern, float_sites)))
        model, _ = quantize_model(
            read_outline(self.path),
            self.cache,
            profile=self.profile,
            weights=self.weights,
            choice=choice,
            bits=self.bits,
            source=self.path,
        )
        return model

    def score(self, float_sites: Sequence[str] = ()) -> float:
        """The task's score of it, simulated."""
        with literal_session(self.quantized(float_sites), source=self.path, threads=self.threads) as infer:
            return self.task.evaluate(infer).score

    def params_of(self, tensor: str) -> QuantParams:
        """Scale and zero point that a measured tensor gets."""
        return self.cache.range_of(tensor, bits=self.bits.activations, symmetric=self.profile.symmetric)
