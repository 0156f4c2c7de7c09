"""Graphs and shapes that TensorRT does not take are refused before any parser, naming the node or input."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from deploy.backends.engine_contents import graph_contents
from deploy.backends.engine_preflight import check_graph, check_shape_range
from deploy.graphs.graph_index import GraphIndex
from deploy.graphs.graph_patterns import find_linears
from deploy.graphs.shapes import Shapes
from deploy.quantization.quantize import quantize
from tests.deploy.calibrated import quantized
from tests.deploy.graphs.test_float16 import both

SIZES: dict[str, tuple[int | str, ...]] = {"input_ids": ("batch", "length"), "attention_mask": ("batch", "length")}


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> onnx.ModelProto:
    return onnx.load(quantized(tmp_path_factory.mktemp("clean"), "tensorrt"))


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> onnx.ModelProto:
    folder = tmp_path_factory.mktemp("half")
    _, path, cache = both(folder)
    quantize(path, cache, folder / "int8.onnx", profile="tensorrt")
    return onnx.load(folder / "int8.onnx")


def _same(shape: tuple[int, ...]) -> Shapes:
    return dict.fromkeys(SIZES, shape)


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def _with_zero_points(model: onnx.ModelProto, zero_point: np.ndarray) -> str:
    node = next(node for node in model.graph.node if node.op_type == "QuantizeLinear")
    model.graph.initializer.append(numpy_helper.from_array(zero_point, "odd_zero_point"))
    readers = [reader for reader in model.graph.node if node.output[0] in reader.input]
    for pair in (node, *readers):
        pair.input[2] = "odd_zero_point"
    return str(node.name)


def _dynamically(model: onnx.ModelProto) -> str:
    node = next(node for node in model.graph.node if node.op_type == "QuantizeLinear")
    node.op_type = "DynamicQuantizeLinear"
    return str(node.name)


def _with_contrib(model: onnx.ModelProto) -> str:
    node = next(node for node in model.graph.node if node.op_type == "LayerNormalization")
    node.op_type, node.domain = "SkipLayerNormalization", "com.microsoft"
    return str(node.name)


def _with_two_float_types(model: onnx.ModelProto) -> str:
    node = next(node for node in model.graph.node if node.op_type == "Softmax")
    model.graph.initializer.append(numpy_helper.from_array(np.ones(1, np.float16), "half_one"))
    model.graph.node.append(helper.make_node("Mul", [node.output[0], "half_one"], ["odd"], name="odd/Mul"))
    return "odd/Mul"


@pytest.mark.parametrize(
    ("break_it", "told"),
    [
        (
            lambda model: _with_zero_points(model, np.array(128, np.uint8)),
            "quantized to uint8; .*; quantize with --profile tensorrt",
        ),
        (
            lambda model: _with_zero_points(model, np.array(3, np.int8)),
            "zero point is 3; expected 0; quantize symmetrically",
        ),
        (_dynamically, "operator DynamicQuantizeLinear is not explicit Q/DQ; .* quantize statically"),
        (_with_contrib, "com.microsoft.SkipLayerNormalization is not standard ONNX; export without"),
        (_with_two_float_types, "inputs are float16 and float32, and a strongly typed network .*; put a Cast between"),
    ],
)
def test_a_graph_that_no_tensorrt_takes_is_refused_by_node(
    clean: onnx.ModelProto, break_it: Callable[[onnx.ModelProto], str], told: str
) -> None:
    model = _copy(clean)
    node = break_it(model)
    with pytest.raises(ValueError, match=rf"m\.onnx: node '{node}'.*{told}"):
        check_graph(model, name="m.onnx")


def test_integers_in_float32_are_warned_of_and_in_float16_are_not(
    clean: onnx.ModelProto, half: onnx.ModelProto
) -> None:
    (warning,) = check_graph(clean, name="m.onnx")
    assert "layers are float32 beside their integers: export with --dtype float16" in warning
    assert check_graph(half, name="m.onnx") == []
    assert graph_contents(half).precision == "int8 + float16"


def test_a_linear_layer_left_in_float32_in_a_float16_graph_is_named(tmp_path: Path) -> None:
    """With a Cast on both sides of it the types fit, so no parser says a word."""
    _, path, _ = both(tmp_path)
    model = onnx.load(path)
    assert check_graph(model, name="m.onnx") == []
    linear = find_linears(GraphIndex(model.graph))[0]
    weight = next(tensor for tensor in model.graph.initializer if tensor.name == linear.weight)
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight).astype(np.float32), weight.name))
    node = next(node for node in model.graph.node if node.name == linear.node.name)
    place, source, made = list(model.graph.node).index(node), node.input[0], node.output[0]
    node.input[0], node.output[0] = "wide_in", "wide_out"
    model.graph.node.insert(place + 1, helper.make_node("Cast", ["wide_out"], [made], to=TensorProto.FLOAT16))
    model.graph.node.insert(place, helper.make_node("Cast", [source], ["wide_in"], to=TensorProto.FLOAT))
    assert check_graph(model, name="m.onnx") == [
        f"node '{linear.node.name}' is float32 in a float16 graph: it runs at a fraction of the speed"
    ]
    assert graph_contents(model).products["float32"] == 1


@pytest.mark.parametrize(
    ("shapes", "told"),
    [
        (None, r"input 'input_ids' \(batchxlength\) has free sizes; give its min, opt and max shapes"),
        (((1, 1), (1, 1), (8, 64)), "opt shape of input 'input_ids' is 1x1: the engine would be tuned for one token"),
        (((1, 1), (8, 64), (1, 64)), "out of order"),
    ],
)
def test_a_range_that_is_missing_or_of_no_use_is_refused_by_input(
    clean: onnx.ModelProto, shapes: tuple[tuple[int, ...], ...] | None, told: str
) -> None:
    low, mid, high = [_same(shape) for shape in shapes] if shapes else (None, None, None)
    with pytest.raises(ValueError, match=told):
        check_shape_range(clean, SIZES, smallest=low, usual=mid, largest=high, name="m.onnx")


def test_fixed_sizes_need_no_range_and_one_image_is_one_batch(clean: onnx.ModelProto, tmp_path: Path) -> None:
    none = {"smallest": None, "usual": None, "largest": None}
    assert not check_shape_range(clean, {"pixels": (1, 3, 32, 32)}, name="m.onnx", **none)
    image: Shapes = {"pixels": (1, 3, 32, 32)}
    assert check_shape_range(
        clean, {"pixels": ("batch", 3, 32, 32)}, smallest=image, usual=image, largest=image, name="m.onnx"
    )
