"""Stages give the same whether weights lie in the outline that they read or are taken from the file."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from deploy.calibration.calibrate import calibrate
from deploy.graphs import graph_outline
from deploy.graphs.graph_structure import read_outline
from deploy.graphs.profiles import PROFILES, ProfileName
from deploy.graphs.stored_constants import is_reference
from deploy.quantization.lint import lint
from deploy.quantization.quantize import quantize
from tests.deploy.encoder_graph import EncoderRecipe, encoder, feeds


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "model.onnx"
    onnx.save(encoder(EncoderRecipe(gate="mlp")), file)
    return file


def _leave_weights_out(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in graphs of real size: the weights of test graphs are smaller than what is left out."""
    assert not any(is_reference(tensor, path) for tensor in read_outline(path).graph.initializer)
    monkeypatch.setattr(graph_outline, "_SMALLEST_LEFT_OUT", 256)
    assert sum(is_reference(tensor, path) for tensor in read_outline(path).graph.initializer) > 5


def test_ranges_are_those_of_the_graph_with_its_weights(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ranges() -> str:
        cache = calibrate(path, [feeds()], method="mse", data={"kind": "test"}, seed=0, threads=1)
        return json.dumps({name: tensor.to_dict() for name, tensor in cache.tensors.items()})

    expected = ranges()
    _leave_weights_out(path, monkeypatch)
    assert ranges() == expected


@pytest.mark.parametrize("profile", PROFILES)
def test_integers_are_those_of_the_graph_with_its_weights(
    path: Path, profile: ProfileName, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = calibrate(path, [feeds()], method="minmax", data={"kind": "test"}, seed=0, threads=1)
    expected, found = path.with_name("expected.onnx"), path.with_name("found.onnx")
    quantize(path, cache, expected, profile=profile)
    findings = lint(expected, profile)
    _leave_weights_out(path, monkeypatch)
    quantize(path, cache, found, profile=profile)
    assert found.read_bytes() == expected.read_bytes()
    assert lint(found, profile) == findings
