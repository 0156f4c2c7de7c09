"""Products that ran in INT8, from texts in the inspector's forms of TensorRT 10 and 11."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deploy.backends.engine_inspection import read_inspection
from deploy.measuring.gpu_verdict import GENERATIONS, verdict

# (name, kind, tactic, types of the inputs, what the product ran in; None for a layer that is no product)
LAYERS: list[tuple[str, str, str, list[str], str | None]] = [
    ("embeddings", "Gather", "", ["Int64", "Half"], None),
    (
        "query+key+value",
        "gemm",
        "sm80_xmma_gemm_i8f32_i8i32_f32_tn_n_tilesize128x64x64_myl0_3",
        ["Int8", "Int8"],
        "int8",
    ),
    ("scores", "fmha", "_gemm_mha_v2", ["Half", "Half"], "float16"),
    ("intermediate", "CaskGemmMatrixMultiply", "", ["Int8", "Int8"], "int8"),
    ("pooler", "gemm", "sm80_xmma_gemm_f16f16_f16f16_f16_tn_n", ["Half", "Half"], "float16"),
    ("gate", "MatrixMultiply", "", ["Int8", "Float"], "float32"),
    ("output", "gemm", "", ["FP8", "FP8"], "float8"),
    ("output.again", "gemm", "sm89_xmma_gemm_e4m3e4m3_e4m3f32_f32_tn_n_tilesize64x64x64", ["Half", "Half"], "float8"),
    ("output.mixed", "gemm", "", ["FP8", "Half"], "float16"),
    ("output.long", "gemm", "", ["FLOAT8E4M3", "FLOAT8E4M3FN"], "float8"),
    ("output.bfloat16", "gemm", "", ["BFloat16", "BFloat16"], "bfloat16"),
    ("norm+quantize", "kgen", "__myl_MeanSubMulMeanAddSqrtDivMul", ["Half"], None),
]


def _text(form: str) -> str:
    def tensor(name: str, kind: str) -> dict[str, Any]:
        if form == "10":
            return {"Name": name, "Dimensions": [1, 128], "Format/Datatype": f"Row major linear {kind} format"}
        return {"Name": name, "Dimensions": [1, 128], "Format": "Row major linear", "Datatype": kind}

    layers = [
        {
            "Name": name,
            "LayerType": kind,
            "Inputs": [tensor(f"{name}.{place}", type_) for place, type_ in enumerate(types)],
            "Outputs": [tensor(f"{name}.out", "Half")],
            "TacticName": tactic,
        }
        for name, kind, tactic, types, _ in LAYERS
    ]
    if form == "10":
        return json.dumps({"Layers": layers, "Bindings": ["input_ids", "output"]})
    return json.dumps({"Layers": layers, "I/O Tensors": [{"Name": "input_ids"}, {"Name": "output"}]})


@pytest.mark.parametrize("form", ["10", "11"])
def test_each_product_is_told_with_the_type_it_ran_in(form: str) -> None:
    inspection = read_inspection(_text(form))
    assert inspection.form == form
    assert inspection.tensors == ("input_ids", "output")
    assert {layer.name: layer.precision for layer in inspection.products} == {
        name: precision for name, *_, precision in LAYERS if precision is not None
    }
    assert inspection.product_counts() == {"bfloat16": 1, "float16": 3, "float32": 1, "float8": 3, "int8": 2}


def test_weights_that_are_no_input_count_as_the_second_operand() -> None:
    layer = {"Name": "patches", "LayerType": "CaskConvolution", "Inputs": [{"Name": "x", "Format/Datatype": "Int8"}]}
    for kind, precision in (("Int8", "int8"), ("Half", "float16")):
        text = json.dumps({"Layers": [{**layer, "Weights": {"Type": kind, "Count": 9}}], "Bindings": []})
        assert read_inspection(text).product_counts() == {precision: 1}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("ftrt", "is not JSON"),
        ("{}", "no list 'Layers'"),
        ('{"Layers": ["gemm_1"], "Bindings": []}', "--profiling-verbosity detailed"),
    ],
)
def test_other_texts_are_refused(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        read_inspection(text)


def test_the_verdict_is_the_measurement_then_what_the_generation_can_do() -> None:
    assert verdict("8.9", speedup=(1.5, 1.7)).startswith(
        "worth it: INT8 is 1.50 to 1.70 times as fast as float16; SM 8.9"
    )
    assert verdict("8.9", speedup=(0.9, 1.02)).startswith("not worth it")
    assert verdict("8.9", speedup=(1.0, 1.3)).startswith("undecided")
    assert "only 3 of 10 matrix products ran in INT8" in verdict("8.9", products={"int8": 3, "float16": 7})
    assert "only" not in verdict("8.9", products={"int8": 7, "float16": 3})
    with pytest.raises(ValueError, match="no interval"):
        verdict("8.9", speedup=(2.0, 1.0))


@pytest.mark.parametrize("capability", ["10.3", "12.0", "12.1"])
def test_generations_with_few_int8_units_are_told_to_prefer_fp8(capability: str) -> None:
    assert verdict(capability).endswith("has few INT8 units: prefer FP8")


def test_an_unknown_generation_is_told_and_turing_has_no_fp8() -> None:
    assert "not in the table" in verdict("99.0")
    assert verdict("7.5").endswith("there is no FP8")
    assert all(known.has_fp8 for known in GENERATIONS.values() if known.int8 == "weak")
