"""SmoothQuant folding and bias correction, against their definitions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from deploy.calibration.calibrate import calibrate
from deploy.graphs.graph_index import GraphIndex
from deploy.graphs.graph_patterns import find_linears
from deploy.graphs.profiles import PROFILES
from deploy.graphs.watched_graph import WatchedGraph
from deploy.quantization.bias_correction import correct_biases, corrected_layers
from deploy.quantization.channel_statistics import channel_statistics
from deploy.quantization.quantize import quantize_model
from deploy.quantization.smoothing import smooth, smoothed_tensors
from tests.deploy.calibrated import run_literally
from tests.deploy.encoder_graph import encoder, feeds
from tests.deploy.vit_graph import images, vit

ROUNDING = 2e-5
BATCHES = [feeds(batch=4, length=9, seed=seed) for seed in range(2)]


def test_channels_are_measured_without_padding(tmp_path: Path) -> None:
    onnx.save(encoder(), path := tmp_path / "m.onnx")
    found = channel_statistics(path, ["x"], BATCHES, threads=1)["x"]
    rows = np.concatenate(
        [WatchedGraph(path).open(["x"]).run(batch)["x"][batch["attention_mask"].astype(bool)] for batch in BATCHES]
    )
    np.testing.assert_allclose(found.mean, rows.mean(axis=0), atol=ROUNDING)
    np.testing.assert_allclose(found.amax, np.abs(rows).max(axis=0), rtol=ROUNDING)


@pytest.mark.parametrize("norms", ["after", "before"])
def test_smoothing_changes_no_output_and_balances_channels_and_rows(tmp_path: Path, norms: str) -> None:
    model = encoder() if norms == "after" else vit()
    data = BATCHES if norms == "after" else [images(batch=2, seed=seed) for seed in range(2)]
    path, smoothed = tmp_path / "m.onnx", tmp_path / "s.onnx"
    onnx.save(model, path)
    groups = smoothed_tensors(model)
    statistics = channel_statistics(path, list(groups), data, threads=1)
    weight = max(len(group) for group in groups.values())
    assert weight > 1  # queries, keys and values share their factors
    assert smooth(model, statistics, alpha=0.5) == len(groups)
    onnx.checker.check_model(model)
    onnx.save(model, smoothed)
    expected, found = (run_literally(graph, data[0]) for graph in (path, smoothed))
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, atol=ROUNDING * max(1.0, float(np.abs(values).max())))
    muls = sum(node.name.endswith("/Smooth") for node in model.graph.node)
    assert muls == len(groups) if norms == "after" else 0 < muls < len(groups)  # norms of one use take their factors
    # alpha = 0.5 makes the largest value of a channel that of its row of weights.
    again = smoothed_tensors(model)
    measured = channel_statistics(smoothed, list(again), data, threads=1)
    index = GraphIndex(model.graph)
    for tensor, linears in again.items():
        rows = np.max([np.abs(index.constant_value(linear.weight)).max(axis=1) for linear in linears], axis=0)
        live = measured[tensor].amax > 1e-4
        np.testing.assert_allclose(measured[tensor].amax[live], rows[live], rtol=1e-3)


def test_alpha_outside_its_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"alpha is 1\.0"):
        smooth(encoder(), {}, alpha=1.0)


def test_corrected_biases_give_the_mean_output_of_float_weights(tmp_path: Path) -> None:
    floats = encoder()
    path = tmp_path / "m.onnx"
    onnx.save(floats, path)
    cache = calibrate(path, BATCHES, method="minmax", data={"kind": "test"}, seed=0, threads=1)
    quantized, _ = quantize_model(onnx.load(path), cache, profile=PROFILES["tensorrt"], weights="minmax")
    layers = corrected_layers(floats)
    statistics = channel_statistics(path, [layer.input for layer in layers], BATCHES, threads=1)
    before = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in quantized.graph.initializer}
    assert correct_biases(floats, quantized, statistics) == len(layers) == 6
    after = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in quantized.graph.initializer}
    index = GraphIndex(floats.graph)
    assert {linear.weight for linear in find_linears(index)} == {layer.weight for layer in layers}
    weight = index.constant_value("w0_w1").astype(np.float64)
    rounded = after["w0_w1/quantized"] * after["w0_w1/scale"].astype(np.float64)
    mean = statistics["n1_0"].mean
    np.testing.assert_allclose(mean @ rounded + after["w0_fb1"], mean @ weight + before["w0_fb1"], atol=ROUNDING)
    assert not np.array_equal(after["w0_fb1"], before["w0_fb1"])
