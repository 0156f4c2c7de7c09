"""Graphs of other exporters come into form without changing what they compute, or are refused with the reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from deploy.backends.opening import open_backend
from deploy.calibration.calibrate import calibrate
from deploy.graphs.foreign_facts import foreign_facts
from deploy.graphs.foreign_graph import normalise
from deploy.graphs.graph_index import GraphIndex
from deploy.graphs.graph_info import GraphInfo
from deploy.graphs.profiles import PROFILES
from deploy.graphs.sites import find_sites
from deploy.quantization.lint import lint
from deploy.quantization.quantize import quantize
from tests.deploy.calibrated import run_literally
from tests.deploy.encoder_graph import EncoderRecipe, encoder, feeds
from tests.deploy.foreign_encoder import foreign_encoder

ROUNDING = 1e-5
"""Between two forms of one float graph."""


def sites_of(model: onnx.ModelProto, profile: str) -> Counter[str]:
    return Counter(site.kind for site in find_sites(model, PROFILES[profile]).activations)  # type: ignore[index]


def run(model: onnx.ModelProto, inputs: dict[str, np.ndarray], folder: Path) -> np.ndarray:
    onnx.save(model, folder / "run.onnx")
    return run_literally(folder / "run.onnx", inputs)["hidden"]


@pytest.mark.parametrize("names", ["empty", "equal"])
@pytest.mark.parametrize("constants", ["initializers", "nodes"])
@pytest.mark.parametrize("opset", [13, 16, 17, 20])
def test_every_form_has_the_sites_and_the_values_of_our_own_export(
    tmp_path: Path, opset: int, constants: str, names: str
) -> None:
    model = foreign_encoder(opset, constants=constants, names=names)
    # ONNX Runtime itself refuses names that two nodes have.
    expected = run(foreign_encoder(opset, constants=constants, names="kept"), feeds(), tmp_path)
    normalise(model, name="m")
    np.testing.assert_allclose(run(model, feeds(), tmp_path), expected, atol=ROUNDING)
    own = encoder(EncoderRecipe(mask="scaled"))
    for profile in PROFILES:
        assert sites_of(model, profile) == sites_of(own, profile)
    assert len({node.name for node in model.graph.node}) == len(model.graph.node)
    assert not any(node.op_type == "Constant" for node in model.graph.node)


@pytest.mark.parametrize("opset", [13, 18, 23])
def test_a_foreign_graph_is_calibrated_quantized_clean_and_close_on_both_backends(tmp_path: Path, opset: int) -> None:
    # ReduceMean of 18 and later takes its axes as an input, which is no concern of these forms: norms are whole there.
    model = foreign_encoder(opset, constants="nodes", names="equal")
    normalise(model, name="m")
    GraphInfo(task="arrays", family="foreign", max_length=0, vocab_size=0, pad_token_id=0, num_layers=0).write(model)
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    expected = run_literally(path, feeds())["hidden"]
    cache = calibrate(path, [feeds(batch=4)], method="minmax", data={"kind": "test"}, seed=0, threads=1)
    for profile in ("tensorrt", "ort"):
        out = tmp_path / f"{profile}.onnx"
        quantize(path, cache, out, profile=profile)
        assert lint(out, profile) == []
        for backend in ("onnxruntime", "openvino"):
            with open_backend(backend, out, threads=1) as opened:
                found = opened.infer(feeds())["hidden"]
            real = feeds()["attention_mask"].astype(bool)
            assert np.abs(found - expected)[real].max() < 0.2 * np.abs(expected).max()


PADDINGS: dict[str, list[int]] = {
    "no": [1] * 7,
    "left": [0, 0, 0, 1, 1, 1, 1],
    "right": [1, 1, 1, 0, 0, 0, 0],
    "full": [0] * 7,
}


@pytest.mark.parametrize("kind", [TensorProto.INT64, TensorProto.BOOL, TensorProto.FLOAT])
@pytest.mark.parametrize("value", [-np.inf, float(np.finfo(np.float32).min), -1e4])
def test_ranges_do_not_depend_on_how_padding_is_masked(tmp_path: Path, value: float, kind: int) -> None:
    """Masked keys have probability 0 under every mask, and a row without any real token is left out."""
    batch = feeds(batch=4)
    batch["attention_mask"] = np.array(list(PADDINGS.values()))
    ranges = []
    for form in (foreign_encoder(14), foreign_encoder(14, mask_value=value, mask_type=kind)):
        normalise(form, name="m")
        onnx.save(form, tmp_path / "m.onnx")
        cache = calibrate(tmp_path / "m.onnx", [batch], method="minmax", data={"kind": "test"}, seed=0, threads=1)
        ranges.append({name: cache.chosen_range(name, symmetric=False) for name in cache.tensors})
    assert ranges[0].keys() == ranges[1].keys()
    for name, ends in ranges[0].items():
        np.testing.assert_allclose(ranges[1][name], ends, atol=ROUNDING, err_msg=name)


@pytest.mark.parametrize("kind", [TensorProto.INT64, TensorProto.BOOL, TensorProto.FLOAT])
@pytest.mark.parametrize("value", [-np.inf, float(np.finfo(np.float32).min), -1e4])
def test_rows_of_every_padding_are_right_in_integers_under_every_mask(tmp_path: Path, value: float, kind: int) -> None:
    """Real positions are near the float graph's; a row of padding alone stays finite where the float graph's does."""
    model = foreign_encoder(14, mask_value=value, mask_type=kind)
    normalise(model, name="m")
    GraphInfo(task="arrays", family="foreign", max_length=0, vocab_size=0, pad_token_id=0, num_layers=0).write(model)
    path, out = tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(model, path)
    batch = feeds(batch=4)
    batch["attention_mask"] = np.array(list(PADDINGS.values()), onnx.helper.tensor_dtype_to_np_dtype(kind))
    cache = calibrate(path, [batch], method="minmax", data={"kind": "test"}, seed=0, threads=1)
    quantize(path, cache, out)
    exact = run_literally(path, batch)["hidden"]
    real = batch["attention_mask"].astype(bool)
    alone = ~real.any(axis=1)
    assert np.isfinite(exact[alone]).all() == np.isfinite(value)
    for backend in ("onnxruntime", "openvino"):
        with open_backend(backend, out, threads=1) as opened:
            found = opened.infer(batch)["hidden"]
        assert np.abs(found - exact)[real].max() < 0.2 * np.abs(exact[real]).max()
        if np.isfinite(value):
            assert np.isfinite(found).all()


def with_node(op_type: str, inputs: list[str], **attributes: Any) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        model.graph.node.append(helper.make_node(op_type, inputs, ["extra"], name="extra", **attributes))

    return change


def half(model: onnx.ModelProto) -> None:
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))


def without_products(model: onnx.ModelProto) -> None:
    kept = [node for node in model.graph.node if node.op_type in ("Gather", "Shape")][:1]
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in kept]
    del model.graph.node[:]
    model.graph.node.extend(copies)


def random_dropout(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.array(0.1, dtype=np.float32), "ratio"))
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "training"))
    with_node("Dropout", ["x", "ratio", "training"])(model)


def old(model: onnx.ModelProto) -> None:
    model.opset_import[0].version = 12


def new(model: onnx.ModelProto) -> None:
    model.opset_import[0].version = 24


REFUSED: dict[str, tuple[Callable[[onnx.ModelProto], None], str]] = {
    "opset 12": (old, "has opset 12; expected 13 to 23"),
    "opset 24": (new, "has opset 24"),
    "quantized": (
        with_node("DynamicQuantizeLinear", ["x"]),
        r"quantized already, at least in part \(1 DynamicQuantize",
    ),
    "partly quantized": (with_node("DequantizeLinear", ["x", "one"]), "give the float graph"),
    "operators of a runtime": (
        with_node("FusedMatMul", ["x", "w0_qw"], domain="com.microsoft"),
        "node 'extra' is com.microsoft.FusedMatMul",
    ),
    "float16": (half, "weight 'w0_qw' is float16; ranges are measured on the float32 graph"),
    "nothing to quantize": (without_products, "has no linear layer"),
    "training mode": (random_dropout, "node 'extra' drops values at random"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_taken_is_refused_with_the_reason(kind: str) -> None:
    change, message = REFUSED[kind]
    model = foreign_encoder(20, names="kept")
    change(model)
    with pytest.raises(ValueError, match=message):
        normalise(model, name="m")


def test_names_of_inputs_and_outputs_change_everywhere(tmp_path: Path) -> None:
    model = foreign_encoder(14)
    expected = run(model, feeds(), tmp_path)
    normalise(model, name="m", rename={"attention_mask": "mask", "hidden": "last_hidden_state"})
    onnx.save(model, tmp_path / "m.onnx")
    renamed = {"mask" if name == "attention_mask" else name: value for name, value in feeds().items()}
    found = run_literally(tmp_path / "m.onnx", renamed)["last_hidden_state"]
    np.testing.assert_allclose(found, expected, atol=ROUNDING)
    with pytest.raises(ValueError, match="'nothing' is no input or output of m; it has input_ids"):
        normalise(foreign_encoder(14), name="m", rename={"nothing": "x"})
    with pytest.raises(ValueError, match="m has a tensor of that name"):
        normalise(foreign_encoder(14), name="m", rename={"hidden": "input_ids"})


def test_dropouts_that_do_nothing_and_inputs_that_are_constants_go(tmp_path: Path) -> None:
    model = foreign_encoder(20)
    expected = run(model, feeds(), tmp_path)
    for node in model.graph.node:  # between the residual sum and the norm
        if node.op_type == "LayerNormalization" and node.input[0] == "r1_0":
            node.input[0] = "dropped"
    place = next(place for place, node in enumerate(model.graph.node) if node.output[0] == "r1_0")
    model.graph.node.insert(place + 1, helper.make_node("Dropout", ["r1_0"], ["dropped"]))
    weight = next(tensor for tensor in model.graph.initializer if tensor.name == "w0_qw")
    model.graph.input.append(helper.make_tensor_value_info("w0_qw", TensorProto.FLOAT, weight.dims))
    changes = normalise(model, name="m")
    assert (changes["dropouts removed"], changes["inputs that were initializers"]) == (1, 1)
    assert [value.name for value in model.graph.input] == ["input_ids", "attention_mask", "token_type_ids"]
    np.testing.assert_allclose(run(model, feeds(), tmp_path), expected, atol=ROUNDING)


def test_weights_that_are_unpacked_or_joined_at_run_time_become_stored(tmp_path: Path) -> None:
    """Integers with scales (as a weight-only INT8 model keeps them), and queries, keys and values joined in one matrix."""
    model = foreign_encoder(20)
    graph = model.graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    weight = numpy_helper.to_array(stored["w0_w1"])
    scale = np.abs(weight).max(axis=0) / 127
    stored["w0_w1"].CopyFrom(numpy_helper.from_array(np.round(weight / scale).astype(np.int8), "packed"))
    graph.initializer.append(numpy_helper.from_array(scale.astype(np.float32), "w1/scale"))
    graph.node.insert(0, helper.make_node("Cast", ["packed"], ["w1/float"], to=TensorProto.FLOAT))
    graph.node.insert(1, helper.make_node("Mul", ["w1/float", "w1/scale"], ["w0_w1"]))
    expected = run(model, feeds(), tmp_path)
    normalise(model, name="m")
    assert GraphIndex(graph).constant_shape("w0_w1") == weight.shape
    assert len(find_sites(model, PROFILES["tensorrt"]).weights) == 6
    np.testing.assert_allclose(run(model, feeds(), tmp_path), expected, atol=ROUNDING)


def test_a_weight_that_several_layers_share_is_stored_once(tmp_path: Path) -> None:
    model = foreign_encoder(14)
    for node in model.graph.node:
        if node.op_type == "MatMul" and node.input[1] == "w0_kw":
            node.input[1] = "w0_qw"
    normalise(model, name="m")
    GraphInfo(task="arrays", family="foreign", max_length=0, vocab_size=0, pad_token_id=0, num_layers=0).write(model)
    path, out = tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(model, path)
    cache = calibrate(path, [feeds()], method="minmax", data={"kind": "test"}, seed=0, threads=1)
    quantize(path, cache, out)
    integers = [tensor.name for tensor in onnx.load(out).graph.initializer if tensor.data_type == TensorProto.INT8 and len(tensor.dims) == 2]  # fmt: skip
    assert len(integers) == len(set(integers)) == 5
    assert lint(out, "tensorrt") == []


def test_integer_products_and_subgraphs_are_passed_over(tmp_path: Path) -> None:
    """A product of whole numbers is no layer, and what a branch reads from around it stays in the graph."""
    model = foreign_encoder(14)
    graph = model.graph
    expected = run(model, feeds(), tmp_path)
    graph.initializer.append(numpy_helper.from_array(np.eye(7, dtype=np.int64), "places"))
    graph.node.append(helper.make_node("MatMul", ["input_ids", "places"], ["whole"]))
    branches = {
        f"{branch}_branch": helper.make_graph(
            [helper.make_node(op, ["hidden", "w0_fb2"], [f"{branch}/out"])],
            branch,
            [],
            [helper.make_tensor_value_info(f"{branch}/out", TensorProto.FLOAT, ["B", "T", 32])],
        )
        for branch, op in (("then", "Add"), ("else", "Sub"))
    }
    graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    graph.node.append(helper.make_node("If", ["yes"], ["branched"], **branches))
    for name, kind in (("whole", TensorProto.INT64), ("branched", TensorProto.FLOAT)):
        graph.output.append(helper.make_tensor_value_info(name, kind, None))
    normalise(model, name="m")
    GraphInfo(task="arrays", family="foreign", max_length=0, vocab_size=0, pad_token_id=0, num_layers=0).write(model)
    path, out = tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(model, path)
    bias = next(numpy_helper.to_array(t) for t in graph.initializer if t.name == "w0_fb2")
    np.testing.assert_allclose(run_literally(path, feeds())["branched"], expected + bias, atol=ROUNDING)
    cache = calibrate(path, [feeds()], method="minmax", data={"kind": "test"}, seed=0, threads=1)
    quantize(path, cache, out, profile="paper")
    found = run_literally(out, feeds())
    np.testing.assert_array_equal(found["whole"], feeds()["input_ids"])
    np.testing.assert_allclose(found["branched"], found["hidden"] + bias, atol=ROUNDING)


def test_facts_of_a_text_graph_are_read_off_its_tables() -> None:
    model = foreign_encoder(13, constants="nodes")
    normalise(model, name="m")
    facts = foreign_facts(model, ids_name="input_ids", types_name="token_type_ids")
    assert (facts.vocab_size, facts.max_length, facts.length, facts.num_layers) == (50, 24, None, 1)
