"""Real images: a small ViT from checkpoint to judged integers on CIFAR-10, where that lies beside the checkout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deploy.calibration.calibration_cache import CalibrationCache
from tests.export.tiny_checkpoints import settings
from tests.export.vision_checkpoints import SMALL_ENCODER, small_vit, write_vision
from tests.quietformer.test_commands import refuse, succeed

CIFAR = Path(__file__).parents[3] / "shared" / "data" / "cifar10_jpeg"


@pytest.mark.slow
@pytest.mark.skipif(not CIFAR.is_dir(), reason="no ../shared/data/cifar10_jpeg beside the checkout")
def test_cifar_calibrates_and_judges_a_gated_vit(tmp_path: Path) -> None:
    checkpoint = write_vision(small_vit(settings("clipped", "linear")), tmp_path / "checkpoint", SMALL_ENCODER)
    graph, cache, int8, report = (tmp_path / name for name in ("m.onnx", "c.json", "m.int8.onnx", "report.json"))
    succeed("export", checkpoint, "--out", graph)
    assert "looks like an evaluation split" in refuse(
        "calibrate", graph, "--data", CIFAR / "test.parquet", "--out", cache
    )
    succeed("calibrate", graph, "--data", CIFAR, "--out", cache, "--batches", 4, "--batch-size", 8)
    identity = CalibrationCache.load(cache).data
    assert [entry["name"] for entry in identity["files"]] == ["train.parquet"]
    assert len(set(identity["indices"])) == 32
    succeed("quantize", graph, "--calibration", cache, "--out", int8, "--data", CIFAR)
    succeed("lint", int8)
    succeed(
        "compare", "--baseline", checkpoint, "--candidate", int8, "--task", "image", "--data", CIFAR, "--limit", 200,
        "--json", report, "--max-drop", 0.1,
    )  # fmt: skip
    comparison = json.loads(report.read_text())
    assert comparison["num_examples"] == 200
    assert all(0 <= row["details"]["top5"] <= 1 for row in comparison["rows"])
