"""The comparison with other quantizers counts, excludes and scores as it says, and goes on where it was stopped."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks import rivals
from benchmarks.rival_figures import fidelity, site_counts
from benchmarks.rival_quantizers import run_apart
from benchmarks.rival_rows import mask_nodes
from tests.deploy.calibrated import quantized
from tests.deploy.encoder_graph import encoder
from tests.deploy.word_tokenizer import write_tokenizer


def test_the_nodes_of_a_mask_end_where_it_enters_the_scores() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["": 20]>
        g (float[b, s] attention_mask, float[b, s, s] x) => (float[b, s, s] y)
        <float one = {1}, float far = {-10000}, int64[1] axis = {1}>
        {
            wide = Unsqueeze(attention_mask, axis)
            turned = Sub(one, wide)
            bias = Mul(turned, far)
            scores = Mul(x, one)
            masked = Add(scores, bias)
            y = Softmax(masked)
        }""")
    for node in model.graph.node:
        node.name = node.output[0]
    assert mask_nodes(model) == ["wide", "turned", "bias", "masked"]


def test_sites_are_counted_by_tensors_and_by_products_with_two_integer_sides(tmp_path: Path) -> None:
    onnx.save(encoder(), tmp_path / "float.onnx")
    assert site_counts(tmp_path / "float.onnx") == {"tensors": 0, "integer_products": 0, "products": 8}
    assert site_counts(quantized(tmp_path, "tensorrt"))["integer_products"] == 6
    everything = site_counts(quantized(tmp_path, "paper"))
    assert everything["integer_products"] == everything["products"] == 8
    assert everything["tensors"] > 10


def test_fidelity_is_signal_to_noise_and_cosine() -> None:
    reference = np.array([[3.0, 0.0], [0.0, 4.0]])
    assert fidelity(reference, reference) == {"SQNR dB": 200.0, "cosine": 1.0}
    assert fidelity(reference, np.array([[3.5, 0.0], [0.0, 4.0]])) == {"SQNR dB": 20.0, "cosine": 1.0}
    with pytest.raises(ValueError, match="not finite"):
        fidelity(reference, reference * np.nan)


def test_a_run_is_made_in_pieces_and_what_is_done_is_not_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(encoder(), tmp_path / "model.onnx")
    write_tokenizer(tmp_path / "tokenizer.json")
    texts = tmp_path / "texts.txt"
    texts.write_text("".join(f"w{first} w{second}\n" for first in range(6) for second in range(6)))
    given = ["--model", str(tmp_path / "model.onnx"), "--data", str(texts), "--samples", "8", "--shapes", "1x4"]
    given += ["--rows", "quietformer-tensorrt", "--runners", "onnxruntime", "onnxruntime as it comes"]
    given += ["--out", str(tmp_path / "run"), "--seconds", "0.02", "--repeats", "1"]

    def told(*more: str) -> tuple[str, str]:
        monkeypatch.setattr(sys, "argv", ["rivals.py", *given, *more])
        rivals.main()
        said = capsys.readouterr()
        return said.err, said.out

    first, _ = told("--stage", "quantize")
    assert "original/quietformer-tensorrt: quantizing" in first
    rest, table = told()
    assert "quantizing" not in rest
    assert "judging on onnxruntime as it comes" in rest
    lines = [line.split() for line in table.splitlines() if line.startswith("original/")]
    assert [line[0] for line in lines] == ["original/float", *["original/quietformer-tensorrt"] * 2]
    assert "6/8" in lines[1]
    assert all(float(line[line.index("(1.00)") - 1]) > 0 for line in lines[:1])
    again, same = told()
    assert (again, same) == ("", table)
    with pytest.raises(ValueError, match="choose another --out"):
        told("--samples", "7")


def test_a_row_without_its_package_says_which_it_needs(tmp_path: Path) -> None:
    found = run_apart("modelopt", tmp_path / "a.onnx", tmp_path / "a.npz", tmp_path / "b.onnx")
    assert found["skipped"].startswith("needs the package modelopt, which ")
