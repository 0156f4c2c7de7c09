"""Integers of a runtime against those that the graph defines: the same to the last bit where sums are exact, within one step elsewhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

from deploy.backends.opening import open_backend
from tests.deploy.calibrated import quantized, run_literally
from tests.deploy.encoder_graph import EncoderRecipe, feeds

CPU_BACKENDS = ["onnxruntime", "openvino"]
TWO_LAYERS = """
<ir_version: 9, opset_import: ["" : 20]>
g (float[B, 48] x) => (float[B, 16] y)
<float s1 = {0.0625}, float s2 = {0.5}, float sw = {0.0078125}, float sv = {0.015625}, TYPE z = {ZERO}, int8 none = {0}> {
    xq = QuantizeLinear(x, s1, z) xd = DequantizeLinear(xq, s1, z)
    w1 = DequantizeLinear(weight1, sw, none) m1 = MatMul(xd, w1) b1 = Add(m1, bias) r1 = Relu(b1)
    hq = QuantizeLinear(r1, s2, z) hd = DequantizeLinear(hq, s2, z)
    w2 = DequantizeLinear(weight2, sv, none) m2 = MatMul(hd, w2)
    yq = QuantizeLinear(m2, s2, z) y = DequantizeLinear(yq, s2, z)
}
"""
"""Steps are powers of two, so that the float simulation is exact as well. Both weights share a zero point, as other tools write it.

Zero points are even: OpenVINO adds them before it rounds to even, so that exact halves fall on the other side where one is odd.
"""


def with_integers(path: Path) -> dict[str, float]:
    """Make what every DequantizeLinear of an activation gives an output; steps by name, in graph order."""
    model = onnx.load(path)
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    known = {value.name for value in model.graph.output}
    steps = {
        node.output[0]: float(stored[node.input[1]])
        for node in model.graph.node
        if node.op_type == "DequantizeLinear" and node.input[0] not in stored and stored[node.input[1]].ndim == 0
    }
    for name in steps:
        if name not in known:
            model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    onnx.save(model, path)
    return steps


def in_steps(backend: str, path: Path, steps: dict[str, float], inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """How many steps a runtime's integers are away from those of the simulation, by tensor."""
    expected = run_literally(path, inputs)
    with open_backend(backend, path, threads=1) as opened:
        found = opened.infer(inputs)
    return {name: np.rint((found[name] - expected[name]) / step) for name, step in steps.items()}


@pytest.mark.parametrize("backend", CPU_BACKENDS)
@pytest.mark.parametrize(("kind", "zero"), [("int8", "0"), ("uint8", "128"), ("uint8", "4")])
def test_all_integers_of_two_layers_are_equal_to_the_last_bit(
    tmp_path: Path, backend: str, kind: str, zero: str
) -> None:
    model = onnx.parser.parse_model(TWO_LAYERS.replace("TYPE", kind).replace("ZERO", zero))
    generator = np.random.default_rng(0)
    for name, shape in (("weight1", (48, 32)), ("weight2", (32, 16))):
        values = generator.integers(-127, 128, shape).astype(np.int8)
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    for place, node in enumerate(model.graph.node):
        node.name = f"node_{place}"  # ONNX Runtime calls what it makes after the node
    bias = (generator.integers(-512, 512, 32) / 128).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(bias, "bias"))
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    steps = with_integers(path)
    x = generator.normal(scale=4, size=(64, 48)).astype(np.float32)
    x[0], x[1], x[2] = 1e6, -1e6, 0.03125  # both ends, and halves
    away = in_steps(backend, path, steps, {"x": x})
    assert list(away) == ["xd", "hd", "y"]
    for name, difference in away.items():
        assert not difference.any(), name


@pytest.mark.parametrize("backend", CPU_BACKENDS)
@pytest.mark.parametrize("profile", ["tensorrt", "ort", "paper"])
def test_integers_of_an_encoder_are_within_one_step(tmp_path: Path, backend: str, profile: str) -> None:
    path = quantized(tmp_path, profile, EncoderRecipe(softmax="folded", gate="linear"))
    steps = with_integers(path)
    away = in_steps(backend, path, steps, feeds(batch=4, length=11))
    first, *rest = away
    assert not away[first].any(), first
    for name in rest:
        assert np.abs(away[name]).max() <= 1, name
        assert np.mean(away[name] != 0) < 0.05, name
