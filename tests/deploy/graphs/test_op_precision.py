"""Precision of each matrix product, read off the graph."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx
import pytest

from deploy.graphs.op_precision import op_precisions
from tests.deploy.calibrated import quantized
from tests.deploy.encoder_graph import EncoderRecipe, encoder


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        ("tensorrt", {"int8 x int8": 6, "float": 3}),
        ("ort", {"uint8 x int8": 6, "float": 3}),
        ("paper", {"uint8 x int8": 7, "uint8 x uint8": 2}),
    ],
)
def test_products_run_in_the_types_of_their_operands(tmp_path: Path, profile: str, expected: dict[str, int]) -> None:
    model = onnx.load(quantized(tmp_path, profile, EncoderRecipe(gate="linear")))
    assert Counter(op.precision for op in op_precisions(model)) == expected


def test_a_float_graph_has_float_products_with_their_names() -> None:
    operations = op_precisions(encoder())
    assert {op.precision for op in operations} == {"float"}
    assert all(op.node.startswith("encoder/MatMul_") and op.op_type == "MatMul" for op in operations)
