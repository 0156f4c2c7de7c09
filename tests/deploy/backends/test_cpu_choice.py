"""Integers run where they are exact and fast."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.backends import cpu_choice
from deploy.machine import machine_facts
from deploy.serving.artifact_choice import choose_artifact
from tests.deploy.calibrated import quantized

AVX2 = "processor : 0\nmodel name : some\nflags : fpu avx2\n"
VNNI = "processor : 0\nmodel name : some\nflags : fpu avx2 avx512f avx512_vnni\n"


@pytest.mark.parametrize(("cpuinfo", "integers"), [(AVX2, "onnxruntime"), (VNNI, "openvino")])
def test_integers_go_where_kernels_do_not_saturate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpuinfo: str, integers: str
) -> None:
    facts = machine_facts(cpuinfo=cpuinfo, versions={})
    monkeypatch.setattr(cpu_choice, "machine_facts", lambda **_: facts)
    graph = quantized(tmp_path, "tensorrt")
    floats = tmp_path / "model.onnx"
    assert cpu_choice.usual_cpu_backend([floats]) == "openvino"
    assert cpu_choice.usual_cpu_backend([floats, graph]) == integers
    assert choose_artifact(graph).backend == integers
    assert choose_artifact(floats).backend == "openvino"
    assert choose_artifact(graph, "openvino").backend == "openvino"
