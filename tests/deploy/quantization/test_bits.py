"""Integers of other widths than 8: the graph computes exactly what such hardware would."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from deploy.graphs.graph_info import read_info
from deploy.quantization.bits import Bits
from deploy.quantization.lint import lint
from deploy.quantization.quantize import quantize
from tests.deploy.calibrated import calibrated, run_literally
from tests.deploy.encoder_graph import EncoderRecipe, encoder, feeds

WIDTHS = ["W8A8", "W6A8", "W4A8", "W6A6", "W2A2", "W8A16", "W16A16", "W12A9"]


@pytest.mark.parametrize("text", WIDTHS)
def test_graphs_of_every_width_are_valid_clean_and_say_so(tmp_path: Path, text: str) -> None:
    path, cache = calibrated(tmp_path, EncoderRecipe(gate="linear", softmax="folded"))
    summary = quantize(path, cache, tmp_path / "q.onnx", profile="paper", bits=Bits.parse(text))
    onnx.checker.check_model(onnx.load(tmp_path / "q.onnx"), full_check=True)
    assert lint(tmp_path / "q.onnx", "paper") == []
    assert (summary.bits, read_info(tmp_path / "q.onnx").bits) == (text, text)
    assert summary.is_simulated == (text != "W8A8")
    assert np.isfinite(run_literally(tmp_path / "q.onnx", feeds())["hidden"]).all()


@pytest.mark.parametrize("text", ["W4A6", "W3A12", "W2A4"])
def test_integers_use_the_whole_width_and_nothing_beyond(tmp_path: Path, text: str) -> None:
    bits = Bits.parse(text)
    path, cache = calibrated(tmp_path)
    quantize(path, cache, tmp_path / "q.onnx", profile="paper", bits=bits)
    model = onnx.load(tmp_path / "q.onnx")
    weight = next(numpy_helper.to_array(t) for t in model.graph.initializer if t.name == "w0_qw/quantized")
    assert np.abs(weight.astype(int)).max() == 2 ** (bits.weights - 1) - 1
    model.graph.output.append(onnx.ValueInfoProto(name="x/quantized"))
    onnx.save(model, tmp_path / "watched.onnx")
    # Ids and rows that calibration did not see go beyond its ranges.
    values = run_literally(tmp_path / "watched.onnx", feeds(batch=16, length=20, seed=7))["x/quantized"]
    assert (values.min(), values.max()) == (0, 2**bits.activations - 1)


def test_narrow_integers_equal_those_computed_by_hand(tmp_path: Path) -> None:
    path, cache = calibrated(tmp_path)
    quantize(path, cache, tmp_path / "q.onnx", profile="paper", bits=Bits.parse("W8A5"))
    model = onnx.load(tmp_path / "q.onnx")
    for name in ("e2", "e2/quantized"):
        model.graph.output.append(onnx.ValueInfoProto(name=name))
    onnx.save(model, tmp_path / "watched.onnx")
    found = run_literally(tmp_path / "watched.onnx", feeds(batch=16, length=20, seed=7))
    params = cache.range_of("e2", bits=5, symmetric=False)
    expected = np.clip(np.rint(found["e2"] / np.float32(params.scale)) + params.zero_point, 0, 31)
    assert np.array_equal(found["e2/quantized"], expected)


def test_more_bits_give_a_smaller_error(tmp_path: Path) -> None:
    path, cache = calibrated(tmp_path)
    seen = feeds(batch=4, length=9, seed=0)  # of the calibration: nothing is cut off, only rounded
    exact = run_literally(path, seen)["hidden"]
    errors = []
    for text in ("W4A4", "W6A6", "W8A8", "W12A12"):
        quantize(path, cache, tmp_path / "q.onnx", profile="paper", bits=Bits.parse(text), force=True)
        errors.append(float(np.square(run_literally(tmp_path / "q.onnx", seen)["hidden"] - exact).mean()))
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < errors[-2] / 100  # four bits more: 256 times less but for luck


@pytest.mark.parametrize(
    ("text", "message"),
    [("8", "bits '8' are not of the form W8A8"), ("W1A8", "1 bits for weights; expected 2 to 16"),
     ("W8A17", "17 bits for activations; expected 2 to 16"), ("w8a8", "not of the form")],
)  # fmt: skip
def test_widths_that_are_none_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Bits.parse(text)


def test_profiles_for_kernels_and_old_opsets_are_refused(tmp_path: Path) -> None:
    path, cache = calibrated(tmp_path)
    with pytest.raises(
        ValueError, match="profile 'tensorrt' is for 8-bit kernels; W6A8 exists in profile 'paper' only"
    ):
        quantize(path, cache, tmp_path / "q.onnx", bits=Bits.parse("W6A8"))
    old = encoder()
    old.opset_import[0].version = 17
    onnx.save(old, path)
    with pytest.raises(ValueError, match="more than 8 bits need opset 18 or newer; the graph has 17"):
        quantize(path, cache, tmp_path / "q.onnx", profile="paper", bits=Bits.parse("W8A9"), allow_stale=True)
