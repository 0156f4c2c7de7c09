"""Graphs of decoders with a stored prefix: constants before keys and values, one mask, integers as simulated."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import onnx
import pytest

from deploy.calibration.calibrate import calibrate
from deploy.quantization.lint import lint
from deploy.quantization.quantize import quantize
from export.parity import open_session
from export.to_onnx import ExportReport, export_checkpoint
from tests.deploy.calibrated import run_literally
from tests.export.tiny_checkpoints import VOCAB_SIZE, settings, tiny_model, write_checkpoint
from tests.export.tiny_decoders import FAMILIES
from train.conversion.prefix_tokens import store_prefix
from train.simulation.quantization_places import ProfileName
from train.simulation.simulated_model import simulated_model

PREFIX = [7, 9, 4]
ONE_LAYER = {**FAMILIES["llama"], "num_layers": 1}


def _export(folder: Path, softmax: str, **options: Any) -> tuple[Path, Path, ExportReport]:
    model = tiny_model(settings(softmax, "none"), **ONE_LAYER)
    store_prefix(model, PREFIX)
    checkpoint = write_checkpoint(model, folder / "checkpoint")
    report = export_checkpoint(checkpoint, folder / "graph" / "model.onnx", **options)
    return checkpoint, folder / "graph" / "model.onnx", report


def _feeds(seed: int) -> dict[str, np.ndarray]:
    """Rows that are full, end in padding and begin with it."""
    mask = np.ones((3, 14), np.int64)
    mask[1, 9:], mask[2, :5] = 0, 0
    return {"input_ids": np.random.default_rng(seed).integers(4, VOCAB_SIZE, (3, 14)) * mask, "attention_mask": mask}


@pytest.mark.parametrize(("softmax", "options"), [("clipped", {}), ("off-by-one", {"length": 12})])
def test_a_prefix_exports_with_standard_operators(tmp_path: Path, softmax: str, options: dict[str, Any]) -> None:
    _, path, report = _export(tmp_path, softmax, **options)
    assert max(result.max_difference for result in report.parity) < 5e-5
    graph = onnx.load(path).graph
    stored = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer if ".prefix." in tensor.name}
    assert len(stored) == 2
    assert all(shape[-2] == len(PREFIX) for shape in stored.values())


@pytest.mark.parametrize("profile", get_args(ProfileName))
def test_integers_behind_a_prefix_agree_with_the_simulation(tmp_path: Path, profile: ProfileName) -> None:
    checkpoint, path, _ = _export(tmp_path, "vanilla")
    batches, probe = [_feeds(seed) for seed in range(2)], _feeds(9)
    cache = calibrate(path, batches, method="minmax", data={"kind": "test"}, seed=0, threads=1)
    graph = tmp_path / "integers.onnx"
    quantize(path, cache, graph, profile=profile)
    findings = {finding.rule for finding in lint(graph, profile)}
    assert findings == ({"QF006"} if profile == "paper" else set())  # stored values stay float beside rounded ones
    real = probe["attention_mask"] == 1
    integers = run_literally(graph, probe)["logits"][real]
    (floats,) = open_session(path).run(["logits"], probe)
    with simulated_model(checkpoint, batches, profile=profile, method="minmax", weights="minmax") as infer:
        simulation = infer(probe)["logits"][real]
    lost = np.abs(simulation - floats[real]).mean()
    assert lost > 0.005
    assert np.abs(integers - simulation).mean() < 0.01 * lost
