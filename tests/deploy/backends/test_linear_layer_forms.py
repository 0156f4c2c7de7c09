"""However a quantized linear layer is written, ONNX Runtime computes what ONNX defines, also at the ends of every range."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from deploy.backends.opening import open_backend
from tests.deploy.calibrated import run_literally

SHARED_FOLDER = (HealthCheck.function_scoped_fixture,)


@st.composite
def layers(draw: st.DrawFn) -> tuple[onnx.ModelProto, np.ndarray]:
    """A layer over inputs of one to four axes, and an input for it."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows, columns, rank = draw(st.integers(1, 40)), draw(st.integers(1, 20)), draw(st.integers(1, 4))
    weight_type, activation_type = draw(st.sampled_from(["int8", "uint8"])), draw(st.sampled_from(["uint8", "int8"]))
    scales = draw(st.sampled_from([(), (1,), (columns,)]))
    bounds = np.iinfo(weight_type)
    constants = {
        "w": random.integers(bounds.min, bounds.max + 1, (rows, columns)).astype(weight_type),
        "ws": np.asarray(random.uniform(0.01, 1, scales), np.float32),
        "s": np.full(draw(st.sampled_from([(), (1,)])), 0.05, np.float32),
    }
    constants["z"] = np.full(constants["s"].shape, draw(st.integers(0, 120)), activation_type)
    of_weight = ["w", "ws"]
    if draw(st.booleans()):
        constants["wz"] = np.asarray(random.integers(0, 20, scales), weight_type)
        of_weight.append("wz")
    operator = draw(st.sampled_from(["MatMul", "Gemm"])) if rank == 2 else "MatMul"
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("DequantizeLinear", of_weight, ["v"], axis=draw(st.sampled_from([1, -1]))),
        helper.make_node(operator, ["d", "v"], ["p"]),
    ]
    output = "p"
    if (shape := draw(st.sampled_from([None, (columns,), (1,), (1, columns)]))) is not None:
        constants["b"] = random.standard_normal(shape).astype(np.float32)
        nodes.append(helper.make_node("Add", draw(st.permutations(["p", "b"])), ["y"]))
        output = "y"
    sizes = (*(2, 3, 2)[: rank - 1], rows)
    graph = helper.make_graph(
        nodes,
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, sizes)],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(values, name) for name, values in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    at_the_end = draw(st.booleans())
    values = np.full(sizes, 50.0) if at_the_end else random.standard_normal(sizes) * 8
    return model, values.astype(np.float32)


@settings(max_examples=60, deadline=None, suppress_health_check=SHARED_FOLDER)
@given(layer=layers())
def test_a_linear_layer_computes_what_onnx_defines(tmp_path: Path, layer: tuple[onnx.ModelProto, np.ndarray]) -> None:
    model, values = layer
    path = tmp_path / "layer.onnx"
    onnx.save(model, path)
    (expected,) = run_literally(path, {"x": values}).values()
    with open_backend("onnxruntime", path, threads=1) as opened:
        (found,) = opened.infer({"x": values}).values()
    np.testing.assert_allclose(found, expected, atol=1e-4 * max(1.0, float(np.abs(expected).max())))
