"""Whole exports of decoders: families and variants, padding on either side, opsets, integers, engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import onnx
import pytest
import torch

from deploy.backends.engine_builder import build_engine
from deploy.calibration.calibrate import calibrate
from deploy.graphs.attention_pattern import find_attentions
from deploy.graphs.graph_index import GraphIndex
from deploy.graphs.graph_info import read_info
from deploy.graphs.graph_patterns import find_linears
from deploy.graphs.norm_pattern import find_norms
from deploy.graphs.profiles import ProfileName
from deploy.quantization.lint import lint
from deploy.quantization.quantize import quantize
from export.checks import check_mask
from export.lowering import Lowering, lower
from export.parity import open_session
from export.tracing import GraphInterface
from tests.export.conftest import Exported, ExportTiny
from tests.export.tiny_checkpoints import POSITIONS, VOCAB_SIZE
from tests.export.tiny_decoders import FAMILIES
from train.attention.quiet_attention import MASK_VALUE

ONE_LAYER = {family: {**values, "num_layers": 1} for family, values in FAMILIES.items()}
BARE_OPT = {**ONE_LAYER["opt"], "architecture": "OPTModel"}
VARIANTS = [
    ("opt", "vanilla", "none", {}),
    ("opt", "clipped", "linear", {"lowering": "literal"}),
    ("opt", "clipped-per-row", "all-heads", {"ids": "int32"}),
    ("opt-post-norm", "off-by-one", "mlp", {"length": 24, "opset": 21}),
    ("llama", "vanilla", "none", {}),
    ("llama", "clipped", "mlp", {}),
    ("llama", "clipped-zeta", "all-heads", {"opset": 23}),
    ("llama", "clipped-per-row", "none", {"opset": 18}),
    ("llama", "off-by-one", "linear", {"lowering": "literal"}),
]  # all lowerings of all combinations: test_decoder_lowering.py


def _run(path: Path, ids_BT: Any, mask_BT: Any) -> np.ndarray:
    feeds = {"input_ids": np.asarray(ids_BT, np.int64), "attention_mask": np.asarray(mask_BT, np.int64)}
    (output,) = open_session(path).run(None, feeds)
    assert isinstance(output, np.ndarray)
    return output


def _random_ids(shape: tuple[int, int], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(4, VOCAB_SIZE, size=shape)


@pytest.mark.parametrize(("family", "softmax", "gate", "options"), VARIANTS)
def test_every_family_and_variant_exports_and_passes_its_checks(
    export_tiny: ExportTiny, family: str, softmax: str, gate: str, options: dict[str, Any]
) -> None:
    exported = export_tiny(softmax, gate, model=ONE_LAYER[family], **options)
    sizes = [(result.batch, result.length) for result in exported.report.parity]
    assert sizes == ([(1, 24), (3, 24), (5, 24)] if "length" in options else [(1, 7), (3, 33), (4, POSITIONS)])
    assert max(result.max_difference for result in exported.report.parity) < 5e-5
    index = GraphIndex(onnx.load(exported.path).graph)
    (attention,) = find_attentions(index)
    assert (attention.gate_probability is not None) == (gate != "none")
    operators = [node.op_type for node in index.nodes]
    assert not {"Gemm", "Where"} & set(operators)
    assert ("RMSNormalization" in operators) == (family == "llama" and options.get("opset") == 23)
    assert len(find_norms(index)) == (2 if family == "opt-post-norm" else 3)
    info = read_info(exported.path)
    assert (info.task, info.max_length, info.num_layers) == ("text-generation", POSITIONS, 1)


@pytest.mark.parametrize("family", ["opt", "llama"])
def test_padding_on_either_side_changes_no_logits(export_tiny: ExportTiny, family: str) -> None:
    path = export_tiny(model=ONE_LAYER[family]).path
    ids = _random_ids((2, 20))
    alone = _run(path, ids[:1, :12], np.ones((1, 12)))
    for begin in (0, 3, 8):
        for other in (20, 3, 0):
            padded, mask = _random_ids((2, 20), seed=begin), np.zeros((2, 20))
            padded[0, begin : begin + 12] = ids[0, :12]
            mask[0, begin : begin + 12] = 1
            mask[1, 20 - other :] = 1
            together = _run(path, padded, mask)
            assert np.abs(together[0, begin : begin + 12] - alone[0]).max() < 3e-5
            assert np.isfinite(together).all()


@pytest.mark.parametrize("family", ["opt", "llama"])
def test_a_token_never_sees_what_comes_after_it(export_tiny: ExportTiny, family: str) -> None:
    path = export_tiny(model=ONE_LAYER[family]).path
    ids = _random_ids((1, 20))
    before = _run(path, ids, np.ones((1, 20)))
    ids[0, 13:] = _random_ids((1, 7), seed=1)
    after = _run(path, ids, np.ones((1, 20)))
    assert np.array_equal(before[0, :13], after[0, :13])
    assert np.abs(before[0, 13:] - after[0, 13:]).max() > 0.1


def test_no_constant_of_the_graph_is_beyond_the_mask(export_tiny: ExportTiny) -> None:
    for family in ("opt", "llama"):
        for tensor in onnx.load(export_tiny(model=ONE_LAYER[family]).path).graph.initializer:
            array = onnx.numpy_helper.to_array(tensor)
            if array.dtype.kind == "f":
                assert np.abs(array).max() <= -MASK_VALUE, tensor.name


def test_a_bare_decoder_puts_out_its_hidden_states(export_tiny: ExportTiny) -> None:
    exported = export_tiny(model=BARE_OPT)
    assert _run(exported.path, _random_ids((2, 9)), np.ones((2, 9))).shape == (2, 9, 32)
    assert read_info(exported.path).task == "feature-extraction"


def test_linear_layers_of_a_decoder_are_products_with_stored_weights(export_tiny: ExportTiny) -> None:
    index = GraphIndex(onnx.load(export_tiny(model=ONE_LAYER["opt"]).path).graph)
    names = [linear.node.name.rpartition(".")[2] for linear in find_linears(index)]
    assert names == [f"{name}/MatMul" for name in ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2")] + [
        "lm_head/MatMul"
    ]
    assert not any(
        node.op_type == "Mul" and index.constant_shape(name) == ()
        for node in index.nodes
        if "self_attn" in node.name
        for name in node.input
    )


def test_a_mask_that_lets_tokens_see_ahead_is_refused(export_tiny: ExportTiny) -> None:
    exported = export_tiny(model=ONE_LAYER["opt"])
    graph = onnx.load(exported.path).graph
    lowered = lower(exported.model, lowering=get_args(Lowering)[0])
    interface = _interface(exported)
    check_mask(graph, lowered, interface)
    (add,) = [node for node in graph.node if node.name.endswith("self_attn.scores/Add")]
    (padding,) = [node.output[0] for node in graph.node if node.name == "mask/Cast_1"]
    add.input[1] = padding
    with pytest.raises(ValueError, match=r"self_attn adds mask 'mask/Cast_1' of shape \['batch', 1, 1, 'length'\]"):
        check_mask(graph, lowered, interface)


def _interface(exported: Exported) -> GraphInterface:
    return GraphInterface(
        output="logits", token_types=False, ids=torch.int64, max_length=POSITIONS, length=None, causal=True
    )


def _feeds(seed: int) -> dict[str, np.ndarray]:
    mask = np.ones((4, 12), np.int64)
    mask[1, 7:], mask[2, :5] = 0, 0
    return {"input_ids": _random_ids((4, 12), seed=seed) * mask, "attention_mask": mask}


@pytest.mark.parametrize("family", ["opt", "llama"])
def test_integers_of_a_decoder_are_clean_and_build(export_tiny: ExportTiny, tmp_path: Path, family: str) -> None:
    path = export_tiny("clipped", "mlp", model=FAMILIES[family]).path
    cache = calibrate(
        path, [_feeds(seed) for seed in range(3)], method="minmax", data={"kind": "test"}, seed=0, threads=1
    )
    for profile in get_args(ProfileName):
        out = tmp_path / f"{profile}.onnx"
        summary = quantize(path, cache, out, profile=profile)
        assert lint(out, profile) == []
        head = {name: reason for name, reason in summary.float_linears.items() if "gate" not in name}
        assert list(head) == ["lm_head/MatMul"]
    report = build_engine(
        tmp_path / "tensorrt.onnx",
        tmp_path / "engine",
        compute_capabilities=("8.9",),
        min_shapes=_shapes(1, 1),
        opt_shapes=_shapes(1, 16),
        max_shapes=_shapes(4, POSITIONS),
    )
    assert report.engine_bytes > 1000


def _shapes(batch: int, length: int) -> dict[str, tuple[int, ...]]:
    return dict.fromkeys(("input_ids", "attention_mask"), (batch, length))
