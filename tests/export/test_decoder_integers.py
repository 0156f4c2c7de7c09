"""The integers of an exported decoder compute what the simulation on the PyTorch model does."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from deploy.calibration.calibrate import calibrate
from deploy.quantization.quantize import quantize
from export.parity import open_session
from tests.deploy.calibrated import run_literally
from tests.export.conftest import ExportTiny
from tests.export.tiny_checkpoints import VOCAB_SIZE
from tests.export.tiny_decoders import FAMILIES
from train.simulation.quantization_places import ProfileName
from train.simulation.simulated_model import simulated_model

VARIANTS = [("opt", "vanilla", "none"), ("llama", "clipped", "all-heads")]


def _feeds(seed: int) -> dict[str, np.ndarray]:
    """Rows that are full, end in padding and begin with it."""
    mask = np.ones((3, 14), np.int64)
    mask[1, 9:], mask[2, :5] = 0, 0
    return {"input_ids": np.random.default_rng(seed).integers(4, VOCAB_SIZE, (3, 14)) * mask, "attention_mask": mask}


@pytest.mark.parametrize("profile", get_args(ProfileName))
@pytest.mark.parametrize("variant", VARIANTS, ids="-".join)
def test_integers_agree_with_the_simulation(
    export_tiny: ExportTiny, tmp_path: Path, variant: tuple[str, str, str], profile: ProfileName
) -> None:
    family, softmax, gate = variant
    exported = export_tiny(softmax, gate, model=FAMILIES[family])
    batches, probe = [_feeds(seed) for seed in range(3)], _feeds(9)
    cache = calibrate(exported.path, batches, method="minmax", data={"kind": "test"}, seed=0, threads=1)
    graph = tmp_path / "integers.onnx"
    quantize(exported.path, cache, graph, profile=profile)
    real = probe["attention_mask"] == 1
    integers = run_literally(graph, probe)["logits"][real]
    (floats,) = open_session(exported.path).run(["logits"], probe)
    with simulated_model(
        exported.checkpoint,
        batches,
        profile=profile,
        method="minmax",
        weights="minmax",
    ) as infer:
        simulation = infer(probe)["logits"][real]
    lost = np.abs(simulation - floats[real]).mean()
    assert lost > 0.01
    # Scales are equal up to float rounding, so hardly a value falls on another step.
    assert np.abs(integers - simulation).mean() < 0.01 * lost


@pytest.mark.parametrize("family", ["opt", "llama"])
def test_padding_on_either_side_is_left_out_of_the_ranges(export_tiny: ExportTiny, family: str) -> None:
    path = export_tiny(model=FAMILIES[family]).path
    caches = []
    for filler in (0, 57):
        feeds = _feeds(0)
        feeds["input_ids"][feeds["attention_mask"] == 0] = filler
        caches.append(calibrate(path, [feeds], method="minmax", data={"kind": "test"}, seed=0, threads=1))
    for name, one in caches[0].tensors.items():
        two = caches[1].tensors[name]
        assert one.count == two.count
        np.testing.assert_allclose([one.low, one.high], [two.low, two.high], rtol=1e-5, atol=1e-6)
    flat = caches[0].tensors[_ffn_input(family)]
    assert flat.count == 32 * int(_feeds(0)["attention_mask"].sum())


def _ffn_input(family: str) -> str:
    """Tensor that enters the first layer's FFN."""
    if family == "opt":
        return "model.decoder.layers.0.final_layer_norm/LayerNormalization"
    return "model.layers.0.post_attention_layernorm/Mul"
