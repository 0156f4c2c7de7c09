"""The matrix of TensorRT-RTX builds covers what the project claims; one case is really built."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.rtx_builds import ALL_VARIANTS, REAL_VARIANTS, Case, cases, finish, table
from benchmarks.rtx_models import REAL, SMALL
from deploy.backends.engine_targets import USUAL_TARGETS
from tests.export.tiny_checkpoints import settings
from train.attention.settings import AttentionSettings
from train.families.known_families import supported_model_types


def test_every_supported_model_type_is_in_the_matrix(tmp_path: Path) -> None:
    pytest.importorskip("timm")
    folders = [subject.write(AttentionSettings(), tmp_path / name) for name, subject in SMALL.items()]
    found = {json.loads((folder / "config.json").read_text())["model_type"] for folder in folders}
    assert found == set(supported_model_types())


def test_the_matrix_holds_every_softmax_with_every_gate_of_every_family() -> None:
    whole = list(cases([], []))
    assert len(whole) == len(SMALL) * len(ALL_VARIANTS) + len(REAL) * len(REAL_VARIANTS)
    kinds = {(found.softmax, found.gate) for found in (settings(*variant) for variant in ALL_VARIANTS)}
    assert len(kinds) == 16
    assert all(case.targets[0] == USUAL_TARGETS for case in whole)


@pytest.mark.slow
def test_a_case_is_built_once_and_a_refused_one_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorrt_rtx")
    case = Case(model="bert", softmax="clipped", gate="linear")
    first = finish([case], tmp_path)
    half, integers = first[0]["engines"]
    assert half["targets"] == integers["targets"] == list(USUAL_TARGETS)
    assert half["int8_share"] == 0
    assert integers["int8_share"] > 0.5
    assert integers["profile"]["input_ids"]["min"] == [1, 1]

    def refuse(_case: Case, _scratch: Path) -> None:
        raise ValueError("no")

    monkeypatch.setattr("benchmarks.rtx_builds.run_case", refuse)
    assert finish([case], tmp_path) == first
    other = finish([Case(model="vit", softmax="clipped", gate="linear")], tmp_path)
    assert other[0]["error"] == "no"
    assert "bert   int8     7.5 8.0 8.6 8.9 12.0" in table(first + other)
