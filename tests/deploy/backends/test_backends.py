"""Backends give what the graph defines, in integers where it is quantized, and refuse what they cannot run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import numpy_helper

from deploy.backends.artifact import read_artifact
from deploy.backends.onnxruntime_form import OnnxRuntimeForm
from deploy.backends.opening import BACKEND_NAMES, open_backend
from deploy.backends.unsigned_activations import use_unsigned_activations
from deploy.machine import machine_facts
from tests.deploy.calibrated import calibrated, quantized, run_literally
from tests.deploy.encoder_graph import MAX_T, EncoderRecipe, V, feeds

CPU_BACKENDS = ["onnxruntime", "openvino"]
SATURATING_PRODUCT = """
<ir_version: 9, opset_import: ["" : 20]>
g (float[B, 64] x) => (float[B, 32] y) <float one = {1.0}, int8 zero = {0}> {
    q = QuantizeLinear(x, one, zero)
    d = DequantizeLinear(q, one, zero)
    w = DequantizeLinear(weight, one, zero)
    y = MatMul(d, w)
}
"""
CONSTANT_OF_A_BRANCH = """
<ir_version: 9, opset_import: ["" : 20]>
g (float[B, 4] x, bool on) => (float[B, 4] y) <float one = {1.0}, int8 zero = {0}, float lifted = {0.25}> {
    q = QuantizeLinear(x, one, zero)
    d = DequantizeLinear(q, one, zero)
    bias = If(on) <
        then_branch = t () => (float b) { b = Identity(lifted) },
        else_branch = e () => (float c) { c = Neg(lifted) }
    >
    y = Add(d, bias)
}
"""
VARIANTS = [
    EncoderRecipe(num_layers=2),
    EncoderRecipe(softmax="folded", gate="linear"),
    EncoderRecipe(softmax="literal", gate="mlp"),
    EncoderRecipe(softmax="off_by_one"),
    EncoderRecipe(softmax="padded"),
    EncoderRecipe(softmax="per_row"),
    EncoderRecipe(mask="where", gelu="erf"),
]


@pytest.mark.parametrize("backend", CPU_BACKENDS)
@pytest.mark.parametrize("recipe", VARIANTS)
def test_float_graphs_agree_with_the_literal_execution(tmp_path: Path, backend: str, recipe: EncoderRecipe) -> None:
    path, _ = calibrated(tmp_path, recipe)
    with open_backend(backend, path, threads=1, precision="f32" if backend == "openvino" else None) as opened:
        output = opened.infer(feeds())["hidden"]
    assert np.abs(output - run_literally(path, feeds())["hidden"]).max() < 1e-4


@pytest.mark.parametrize("backend", CPU_BACKENDS)
@pytest.mark.parametrize("profile", ["tensorrt", "ort", "paper"])
@pytest.mark.parametrize("recipe", VARIANTS)
def test_integer_graphs_agree_with_the_simulated_arithmetic(
    tmp_path: Path, backend: str, profile: str, recipe: EncoderRecipe
) -> None:
    out = quantized(tmp_path, profile, recipe)
    exact, difference = [], []
    with open_backend(backend, out, threads=1) as opened:
        for seed in range(4):
            inputs = feeds(batch=4, length=11, seed=seed)
            exact.append(run_literally(out, inputs)["hidden"])
            difference.append(opened.infer(inputs)["hidden"] - exact[-1])
    # Only values on the edge of a step may fall on its other side, by one step, because sums are taken in another
    # order. Anything systematic (a clip optimised away, a saturating product, 16-bit floats) is far above that.
    assert np.sqrt(np.mean(np.square(difference))) < 0.02 * np.sqrt(np.mean(np.square(exact)))
    assert abs(np.mean(difference)) < 1e-3


@pytest.mark.parametrize("profile", ["tensorrt", "ort", "paper"])
def test_onnxruntime_multiplies_integers(tmp_path: Path, profile: str) -> None:
    artifact = read_artifact(quantized(tmp_path, profile), rewrite=OnnxRuntimeForm(saturates=False).rewrite)
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(artifact.source, options, providers=["CPUExecutionProvider"])
    kinds = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert sum(kind in ("MatMulIntegerToFloat", "QLinearMatMul") for kind in kinds) == (8 if profile == "paper" else 6)


@pytest.mark.parametrize("profile", ["tensorrt", "ort", "paper"])
def test_openvino_multiplies_integers_and_says_so(tmp_path: Path, profile: str) -> None:
    with open_backend("openvino", quantized(tmp_path, profile)) as opened:
        exact = not machine_facts().saturates_in_16_bits
        assert opened.describe()["integer_products"] == ("6 of 6" if exact else "0 of 6")
        assert opened.precision == ("int8 + float32" if exact else "int8 grid in float32")
        assert opened.is_simulated is not exact


@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_the_largest_sums_do_not_saturate_on_any_processor(tmp_path: Path, backend: str) -> None:
    """All products at the end of their range: in 16 bits, as x86 without VNNI adds pairs of them, the sum is half as large."""
    path = tmp_path / "m.onnx"
    model = onnx.parser.parse_model(SATURATING_PRODUCT)
    model.graph.initializer.append(numpy_helper.from_array(np.full((64, 32), 127, dtype=np.int8), "weight"))
    onnx.save(model, path)
    with open_backend(backend, path, threads=1) as opened:
        output = opened.infer({"x": np.full((3, 64), 127.0, dtype=np.float32)})["y"]
    assert np.array_equal(output, np.full((3, 32), 127.0 * 127 * 64, dtype=np.float32))


@pytest.mark.parametrize("softmax", ["folded", "literal"])
@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_the_clip_survives_quantization_after_it(tmp_path: Path, backend: str, softmax: str) -> None:
    """Runtimes drop a Relu or Clip before an unsigned QuantizeLinear whose own range clips as well: zeros must stay."""
    path = quantized(tmp_path, "paper", EncoderRecipe(softmax=softmax))
    model = onnx.load(path)
    model.graph.output.append(onnx.helper.make_tensor_value_info("prob_0/dequantized", onnx.TensorProto.FLOAT, None))
    onnx.save(model, path)
    with open_backend(backend, path, threads=1) as opened:
        probabilities = opened.infer(feeds(length=11))["prob_0/dequantized"]
    expected = run_literally(path, feeds(length=11))["prob_0/dequantized"]
    assert np.mean(expected == 0) > 0.3
    assert np.mean((probabilities == 0) != (expected == 0)) < 0.01
    assert probabilities.min() == 0
    assert probabilities.max() <= 1


def test_unsigned_activations_change_no_number(tmp_path: Path) -> None:
    path = quantized(tmp_path, "tensorrt", EncoderRecipe(gate="mlp", num_layers=2))
    model = onnx.load(path)
    assert use_unsigned_activations(model) == 8
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, tmp_path / "unsigned.onnx")
    before, after = (run_literally(file, feeds())["hidden"] for file in (path, tmp_path / "unsigned.onnx"))
    assert np.array_equal(before, after)


def test_a_constant_that_only_a_branch_reads_stays(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(CONSTANT_OF_A_BRANCH), path)
    x = np.array([[-3.0, 0.0, 1.0, 200.0]], dtype=np.float32)
    with open_backend("onnxruntime", path, threads=1) as opened:
        outputs = [opened.infer({"x": x, "on": np.array(on)})["y"].tolist() for on in (True, False)]
    assert outputs == [[[-2.75, 0.25, 1.25, 127.25]], [[-3.25, -0.25, 0.75, 126.75]]]


def test_a_zero_point_in_another_file_stays(tmp_path: Path) -> None:
    model = onnx.load(quantized(tmp_path, "tensorrt"))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    assert use_unsigned_activations(onnx.load(tmp_path / "m.onnx", load_external_data=False)) == 0


@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_arrays_that_cannot_be_written_are_taken(tmp_path: Path, backend: str) -> None:
    path, _ = calibrated(tmp_path, VARIANTS[0])
    inputs = feeds()
    for array in inputs.values():
        array.setflags(write=False)
    with open_backend(backend, path, threads=1) as opened:
        assert np.isfinite(opened.infer(inputs)["hidden"]).all()


def test_weights_and_unsigned_graphs_are_not_rewritten(tmp_path: Path) -> None:
    model = onnx.load(quantized(tmp_path, "paper"))
    before = model.SerializeToString(deterministic=True)
    assert use_unsigned_activations(model) == 0
    assert model.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_any_shape_runs_before_and_after_fixing_one(tmp_path: Path, backend: str) -> None:
    path = quantized(tmp_path, "tensorrt")
    with open_backend(backend, path, threads=1) as opened:
        first = opened.infer(feeds(batch=1, length=8))["hidden"]
        opened.fix_shapes(feeds(batch=1, length=8))
        again = opened.infer(feeds(batch=1, length=8))["hidden"]
        assert np.abs(first - again).max() < 0.1
        assert opened.infer(feeds(batch=3, length=5))["hidden"].shape == (3, 5, 32)


@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_outputs_stay_when_the_next_call_is_made(tmp_path: Path, backend: str) -> None:
    path, _ = calibrated(tmp_path)
    with open_backend(backend, path, threads=1) as opened:
        first = opened.infer(feeds(seed=0))["hidden"]
        kept = first.copy()
        opened.infer(feeds(seed=1))
    assert np.array_equal(first, kept)


@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_inputs_are_named_when_they_do_not_fit(tmp_path: Path, backend: str) -> None:
    path, _ = calibrated(tmp_path)
    with open_backend(backend, path, threads=1) as opened:
        assert opened.input_names == ("input_ids", "attention_mask", "token_type_ids")
        assert opened.describe()["backend"] == opened.name == backend
        with pytest.raises(ValueError, match="input 'attention_mask' is missing"):
            opened.infer({"input_ids": feeds()["input_ids"], "token_type_ids": feeds()["token_type_ids"]})
        with pytest.raises(ValueError, match="unknown input 'ids'"):
            opened.infer(feeds() | {"ids": feeds()["input_ids"]})
        with pytest.raises(ValueError, match="input 'input_ids' is float64; expected int64"):
            opened.infer(feeds() | {"input_ids": feeds()["input_ids"].astype(np.float64)})
        narrow = {name: array.astype(np.int32) for name, array in feeds().items()}
        assert np.array_equal(opened.infer(narrow)["hidden"], opened.infer(feeds())["hidden"])
        with pytest.raises(ValueError, match="'T' is 3 in input 'attention_mask' and 7 in input 'input_ids'"):
            opened.infer(feeds() | {"attention_mask": np.ones((2, 3), np.int64)})
        with pytest.raises(ValueError, match=r"input 'input_ids' has shape \(7,\); expected \(B, T\)"):
            opened.infer(feeds() | {"input_ids": np.ones(7, np.int64)})


@pytest.mark.parametrize("backend", CPU_BACKENDS)
@pytest.mark.parametrize("profile", [None, "tensorrt"])
def test_rows_beyond_the_positions_or_the_vocabulary_are_refused(
    tmp_path: Path, backend: str, profile: str | None
) -> None:
    """OpenVINO would read on behind the table without a word."""
    path = calibrated(tmp_path)[0] if profile is None else quantized(tmp_path, profile)
    with open_backend(backend, path, threads=1) as opened:
        assert opened.infer(feeds(batch=1, length=MAX_T))["hidden"].shape[1] == MAX_T
        for prepare in (opened.infer, opened.fix_shapes):
            with pytest.raises(ValueError, match=f"length {MAX_T + 1} is above the model's {MAX_T} positions"):
                prepare(feeds(batch=1, length=MAX_T + 1))
        for wrong in (V, -1):
            with pytest.raises(ValueError, match=rf"input 'input_ids' holds ids .*{wrong}.*; expected 0 to {V - 1}"):
                opened.infer(feeds() | {"input_ids": np.full((2, 7), wrong)})


def test_marks_of_padding_other_than_0_and_1_are_refused(tmp_path: Path) -> None:
    with open_backend("onnxruntime", calibrated(tmp_path)[0], threads=1) as opened:
        for wrong in (2, -1):
            with pytest.raises(
                ValueError, match=rf"input 'attention_mask' holds {wrong} to {wrong}; expected 1 on tokens"
            ):
                opened.infer(feeds() | {"attention_mask": np.full((2, 7), wrong)})


@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_damaged_metadata_is_refused_and_absent_metadata_is_not(tmp_path: Path, backend: str) -> None:
    path, _ = calibrated(tmp_path)
    model = onnx.load(path)
    onnx.helper.set_model_props(model, {"quietformer": "{}"})
    onnx.save(model, tmp_path / "damaged.onnx")
    with pytest.raises(ValueError, match="damaged quietformer metadata: 'task' is missing"):
        open_backend(backend, tmp_path / "damaged.onnx")
    del model.metadata_props[:]
    onnx.save(model, tmp_path / "foreign.onnx")
    with open_backend(backend, tmp_path / "foreign.onnx", threads=1) as opened:
        assert opened.info is None
        assert opened.infer(feeds())["hidden"].shape == (2, 7, 32)


def test_an_input_type_that_no_text_has_is_refused(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 20]> g (double[N] x) => (double[N] y) { y = Relu(x) }'
    )
    onnx.save(model, tmp_path / "x.onnx")
    with pytest.raises(ValueError, match=r"input 'x' is tensor\(double\); expected one of tensor\(int64\)"):
        open_backend("onnxruntime", tmp_path / "x.onnx")


def test_an_error_of_the_runtime_is_one_line(tmp_path: Path) -> None:
    path, _ = calibrated(tmp_path)
    model = onnx.load(path)
    del model.metadata_props[:]
    onnx.save(model, path)
    with (
        open_backend("onnxruntime", path) as opened,
        pytest.raises(ValueError, match="cannot run these feeds") as error,
    ):
        opened.infer(feeds(length=40))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_a_file_that_is_no_model_is_refused(tmp_path: Path, backend: str) -> None:
    (tmp_path / "x.onnx").write_bytes(b"not a model")
    with pytest.raises(ValueError, match="is not an ONNX model"):
        open_backend(backend, tmp_path / "x.onnx")
    with pytest.raises(FileNotFoundError, match="no ONNX file"):
        open_backend(backend, tmp_path / "missing.onnx")


@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_an_operator_that_does_not_exist_is_refused(tmp_path: Path, backend: str) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 20, "far" : 1]> g (float[N] x) => (float[N] y) { y = far.Away(x) }'
    )
    onnx.save(model, tmp_path / "x.onnx")
    with pytest.raises(ValueError, match="does not accept"):
        open_backend(backend, tmp_path / "x.onnx")


def test_unknown_names_and_settings_without_effect_are_refused(tmp_path: Path) -> None:
    path, _ = calibrated(tmp_path)
    with pytest.raises(ValueError, match=f"unknown backend 'tflite'; known backends are {', '.join(BACKEND_NAMES)}"):
        open_backend("tflite", path)
    with pytest.raises(ValueError, match="precision has no effect on backend 'onnxruntime'"):
        open_backend("onnxruntime", path, precision="f32")
    with pytest.raises(ValueError, match="unknown precision 'f8'; known are f32, default"):
        open_backend("openvino", path, precision="f8")
    with pytest.raises(ValueError, match="threads is 0"):
        open_backend("openvino", path, threads=0)


def test_cuda_that_is_not_there_is_an_error_and_no_silent_fallback(tmp_path: Path) -> None:
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime has CUDA")
    path, _ = calibrated(tmp_path)
    with pytest.raises(ValueError, match="has no CUDAExecutionProvider"):
        open_backend("onnxruntime-cuda", path)


@pytest.mark.parametrize(("backend", "module"), [("onnxruntime", "onnxruntime"), ("openvino", "openvino")])
def test_a_missing_runtime_says_which_extra_installs_it(backend: str, module: str) -> None:
    code = (
        f"import sys; sys.modules['{module}'] = None\n"
        "from pathlib import Path\nfrom deploy.backends.opening import open_backend\n"
        f"try: open_backend('{backend}', Path('x.onnx'))\n"
        "except ImportError as error: print(error)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == f"{module} is not installed: pip install 'quietformer[cpu]'"


def test_opening_imports_no_runtime() -> None:
    code = "import sys, deploy.backends.opening; print({'openvino', 'onnxruntime', 'tensorrt_rtx'} & set(sys.modules))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "set()"


def test_an_output_keeps_its_name_where_optimization_finds_it_equal_to_another_tensor(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 20]> g (float[B,2] x) => (float[B,2] logits) '
        "<float[2,2] w = {1, 2, 3, 4}, float[2] zero = {0, 0}> { a = MatMul(x, w) logits = Add(a, zero) }"
    )
    onnx.save(model, tmp_path / "m.onnx")
    for name in ("onnxruntime", "openvino"):
        with open_backend(name, tmp_path / "m.onnx", threads=1) as backend:
            assert list(backend.infer({"x": np.ones((1, 2), np.float32)})) == ["logits"]
