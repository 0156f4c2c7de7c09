"""Commands on a graph that reads images: the same words as for texts, and clear answers where the two do not go together."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from deploy.calibration.calibration_cache import CalibrationCache
from deploy.data.image_data import image_data_identity
from tests.deploy.encoder_graph import encoder
from tests.deploy.vit_graph import ENCODER, K, vit
from tests.quietformer.test_commands import refuse, succeed

Image = pytest.importorskip("PIL.Image")
pytest.importorskip("pyarrow")


def write_images(folder: Path, counts: dict[str, int]) -> Path:
    """Parquet splits of coloured noise whose class is its brightness."""
    import pyarrow as pa
    from pyarrow import parquet

    folder.mkdir()
    for split, count in counts.items():
        generator = np.random.default_rng(count)
        rows = []
        for row in range(count):
            stream = io.BytesIO()
            pixels = generator.integers(0, 55 + 40 * (row % K), (20, 24, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(stream, "PNG")
            rows.append(stream.getvalue())
        table = pa.table({"image": rows, "label": [row % K for row in range(count)]})
        parquet.write_table(table, folder / f"{split}.parquet")
    return folder


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("data") / "images", {"train": 24, "test": 15})


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(vit(), path)
    return path


def test_calibrate_quantize_lint_compare_and_bench_take_images(tmp_path: Path, graph: Path, images: Path) -> None:
    cache_file, int8, report = tmp_path / "calibration.json", tmp_path / "int8.onnx", tmp_path / "report.json"
    succeed(
        "calibrate",
        graph,
        "--data",
        images,
        "--out",
        cache_file,
        "--batches",
        3,
        "--batch-size",
        4,
        "--method",
        "minmax",
    )
    cache = CalibrationCache.load(cache_file)
    indices = cache.data["indices"]
    assert len(set(indices)) == 12
    assert cache.data == image_data_identity(images, labelled=False) | {"indices": indices}
    assert cache.preprocessing == ENCODER.identity()
    assert cache.tensors["pixel_values"].count == 12 * 3 * 16 * 16
    succeed("quantize", graph, "--calibration", cache_file, "--out", int8)
    succeed("lint", int8)
    told = succeed(
        "compare", "--baseline", graph, "--candidate", int8, "--task", "image", "--data", images, "--json", report
    )
    assert "top-1 accuracy" in told.stdout
    comparison = json.loads(report.read_text())
    assert (comparison["num_examples"], comparison["higher_is_better"]) == (15, True)
    assert abs(comparison["rows"][1]["drop"]) <= 3 / 15
    measured = succeed(
        "bench",
        graph,
        int8,
        "--data",
        images,
        "--shapes",
        2,
        "--shapes",
        "1x3x16x16",
        "--seconds",
        0.01,
        "--threads",
        1,
    )
    latency = json.loads(measured.stdout.splitlines()[-1])
    assert [(entry["batch_size"], entry["length"]) for entry in latency] == [(2, None), (1, None)]
    assert "Batch 2; latency in ms" in measured.stdout


def test_random_images_mark_what_is_made_from_them(tmp_path: Path, graph: Path) -> None:
    succeed("calibrate", graph, "--random", "--out", tmp_path / "c.json", "--batches", 2, "--batch-size", 2)
    cache = CalibrationCache.load(tmp_path / "c.json")
    assert cache.not_for_accuracy
    low, high = ((value - np.asarray(ENCODER.mean)) / np.asarray(ENCODER.std) for value in (0, 1))
    assert (cache.tensors["pixel_values"].low, cache.tensors["pixel_values"].high) == pytest.approx(
        (low.min(), high.max())
    )


def test_images_and_texts_are_not_taken_for_one_another(tmp_path: Path, graph: Path, images: Path) -> None:
    cache = tmp_path / "c.json"
    assert "length 16 has no effect" in refuse("calibrate", graph, "--data", images, "--out", cache, "--length", 16)
    assert "column 'x' has no effect" in refuse("calibrate", graph, "--data", images, "--out", cache, "--column", "x")
    test_split = images / "test.parquet"
    assert "looks like an evaluation split" in refuse("calibrate", graph, "--data", test_split, "--out", cache)
    assert "24 images; 16 batches of 16 need 256" in refuse("calibrate", graph, "--data", images, "--out", cache)
    assert "not BATCH or BATCHx3x16x16" in refuse("bench", graph, "--shapes", "1x128")
    compared = ("compare", "--baseline", graph, "--candidate", graph, "--data", images, "--task")
    for task in ("mlm", "sts", "fidelity"):
        assert "reads images, not texts" in refuse(*compared, task)
    text_graph = tmp_path / "text.onnx"
    onnx.save(encoder(), text_graph)
    answer = refuse("compare", "--baseline", text_graph, "--candidate", text_graph, "--data", images, "--task", "image")
    assert "tokenizer" in answer or "classifier of images" in answer
