"""Float graph on disk with a calibration cache of one batch, for tests of what comes after calibration."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from deploy.calibration.calibrate import calibrate
from deploy.calibration.calibration_cache import CalibrationCache
from deploy.quantization.quantize import quantize
from deploy.quantization.stored_weights import WeightRanges
from tests.deploy.encoder_graph import EncoderRecipe, encoder, feeds


def calibrated(folder: Path, recipe: EncoderRecipe | None = None) -> tuple[Path, CalibrationCache]:
    """Write the small encoder and calibrate it by min-max."""
    path = folder / "model.onnx"
    onnx.save(encoder(recipe), path)
    batches = [feeds(batch=4, length=9, seed=seed) for seed in range(2)]
    return path, calibrate(path, batches, method="minmax", data={"kind": "test"}, seed=0, threads=1)


def quantized(
    folder: Path, profile: str, recipe: EncoderRecipe | None = None, *, weights: WeightRanges = "minmax"
) -> Path:
    """Write the small encoder and its integers for one profile; return the path of the latter."""
    path, cache = calibrated(folder, recipe)
    out = folder / f"{profile}.onnx"
    quantize(path, cache, out, profile=profile, weights=weights)
    return out


def run_literally(path: Path, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Execute every node as ONNX defines it: no fusion, so integers are dequantized and products are float."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))
