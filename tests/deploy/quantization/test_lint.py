"""Each lint rule fires on a graph that breaks it and on nothing else; clean graphs pass."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from deploy.graphs.profiles import PROFILES, ProfileName
from deploy.graphs.site_choice import SiteChoice
from deploy.quantization.lint import lint, lint_model
from deploy.quantization.lint_rules.finding import Finding
from deploy.quantization.quantize import quantize
from tests.deploy.calibrated import calibrated, quantized
from tests.deploy.encoder_graph import EncoderRecipe, encoder, from_text

FEED_FORWARD = """
g (float[B,T,32] x) => (float[B,T,32] y)
<float s = {0.1}, float s2 = {0.2}, float nil = {0}, float vast = {1000000}, float ws = {0.01}, float[64] wss, float[32] ss,
 int8 z = {0}, int8 z3 = {3}, uint8 u = {0}, int8[64] zs, int8[32] zz, int32 zi = {0},
 int8[32,64] w1, int8[64,32] w2, float[64,32] w2f, int32[64,32] w2i, int8[32,8] wn, float[8] bn, int8[64] b1q,
 float[64] b1, float[32] b2, float[32] gain, float[32] shift>
{
    q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)
    f1 = DequantizeLinear(w1, ws, z) m1 = MatMul(d, f1) a1 = Add(m1, b1) h = Gelu(a1)
    hq = QuantizeLinear(h, s, z) hd = DequantizeLinear(hq, s, z)
    f2 = DequantizeLinear(w2, ws, z) m2 = MatMul(hd, f2) a2 = Add(m2, b2)
    r = Add(a2, x) y = LayerNormalization(r, gain, shift)
}
"""
ATTENTION = """
g (float[B,H,T,16] q, float[B,H,16,T] k, float[B,H,T,16] v, float[B,1,1,T] mask, float[B,T,32] x) => (float[B,H,T,16] c, float[B,T,32] y)
<float s = {0.1}, int8 z = {0}, float ws = {0.01}, int8[32,32] w, float[32] gain, float[32] shift>
{
    a = MatMul(q, k) b = Add(a, mask) p = Softmax<axis=-1>(b) c = MatMul(p, v)
    xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z) f = DequantizeLinear(w, ws, z) m = MatMul(xd, f)
    y = LayerNormalization(m, gain, shift)
}
"""
PAIR = "{0}q = QuantizeLinear({0}, s, z) {0}d = DequantizeLinear({0}q, s, z)"

BREACHES = [
    ("QF001", FEED_FORWARD, {"q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)":
                             "q = QuantizeLinear(x, s, z3) d = DequantizeLinear(q, s, z3)"}, "zero point is 3; expected 0"),
    ("QF001", FEED_FORWARD, {"DequantizeLinear(w1, ws, z)": "DequantizeLinear(w1, ws, z3)"}, "zero point is 3; expected 0"),
    ("QF002", FEED_FORWARD, {"q, s, z)": "q, nil, z)", "(x, s, z)": "(x, nil, z)"}, "scale is 0.0; expected positive and finite"),
    ("QF002", FEED_FORWARD, {"q, s, z)": "q, vast, z)", "(x, s, z)": "(x, vast, z)"}, "scale is 1e+06, which only a mask can explain"),
    ("QF002", FEED_FORWARD, {"q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)":
                             "top = ReduceMax<keepdims=0>(x) q = QuantizeLinear(x, top, z) d = DequantizeLinear(q, top, z)"},
     "scale is not a stored constant"),
    ("QF003", ATTENTION, {"b = Add(a, mask)": PAIR.format("a") + " b = Add(ad, mask)"}, "attention scores or mask are quantized"),
    ("QF003", ATTENTION, {"b = Add(a, mask)": PAIR.format("mask") + " b = Add(a, maskd)"}, "attention scores or mask are quantized"),
    ("QF003", ATTENTION, {"b = Add(a, mask) p = Softmax<axis=-1>(b)":
                          "b = Add(a, mask) " + PAIR.format("b") + " p = Softmax<axis=-1>(bd)"},
     "attention scores or mask are quantized"),
    ("QF004", FEED_FORWARD, {"m2 = MatMul(hd, f2)": "hq2 = QuantizeLinear(h, s, z) hd2 = DequantizeLinear(hq2, s, z) m2 = MatMul(hd2, f2) "
                             "n2 = MatMul(hd, f2)", "r = Add(a2, x)": "a3 = Add(a2, n2) r = Add(a3, x)"},
     "2 QuantizeLinear nodes on one tensor"),
    ("QF005", FEED_FORWARD, {"h = Gelu(a1)": PAIR.format("a1") + " h = Gelu(a1d)"},
     "quantized between a linear layer and its activation function"),
    ("QF006", ATTENTION, {"a = MatMul(q, k)": PAIR.format("q") + " a = MatMul(qd, k)"}, "only one operand of this product is quantized"),
    ("QF007", FEED_FORWARD, {"r = Add(a2, x)": "fn = DequantizeLinear(wn, ws, z) mn = MatMul(d, fn) an = Add(mn, bn) t = ReduceMean(an, zl) "
                             "u2 = Add(a2, t) r = Add(u2, x)", "int32 zi = {0}": "int32 zi = {0}, int64[1] zl = {-1}"},
     "32x8 is quantized; sides below 16 stay float"),
    ("QF008", FEED_FORWARD, {"a1 = Add(m1, b1)": "bd = DequantizeLinear(b1q, ws, z) a1 = Add(m1, bd)"}, "bias is quantized"),
    ("QF009", FEED_FORWARD, {"q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)":
                             "q = QuantizeLinear(x, s, u) d = DequantizeLinear(q, s, u)"},
     "quantized to uint8; profile 'tensorrt' takes int8"),
    ("QF010", FEED_FORWARD, {"r = Add(a2, x)": "dq, ds, dz = DynamicQuantizeLinear(x) r = Add(a2, x)"},
     "operator DynamicQuantizeLinear is not explicit Q/DQ"),
    ("QF010", FEED_FORWARD, {"h = Gelu(a1)": "h = far.FastGelu(a1)"}, "operator far.FastGelu is not standard ONNX"),
    ("QF011", FEED_FORWARD, {"r = Add(a2, x)": PAIR.format("a2") + " r = Add(a2d, x)"}, "this pair feeds Add and no matrix product"),
    ("QF012", FEED_FORWARD, {"f2 = DequantizeLinear(w2, ws, z) m2 = MatMul(hd, f2)": "m2 = MatMul(h, w2f)",
                             "hq = QuantizeLinear(h, s, z) hd = DequantizeLinear(hq, s, z)": ""},
     "linear layer 64x32 is float"),
    ("QF014", FEED_FORWARD, {"f2 = DequantizeLinear(w2, ws, z)": "i2 = QuantizeLinear(w2f, ws, z) f2 = DequantizeLinear(i2, ws, z)"},
     "weight is stored as float, quantized in the graph; expected int8"),
    ("QF014", FEED_FORWARD, {"f2 = DequantizeLinear(w2, ws, z)": "f2 = DequantizeLinear(w2i, ws, zi)"},
     "weight is stored as int32; expected int8"),
    ("QF015", FEED_FORWARD, {"r = Add(a2, x) y = LayerNormalization(r, gain, shift)": "y = Identity(a2)"},
     "the layer that makes an output of the graph is quantized"),
    ("QF016", FEED_FORWARD, {"m2 = MatMul(hd, f2)": "m2 = MatMul(h, f2)",
                             "hq = QuantizeLinear(h, s, z) hd = DequantizeLinear(hq, s, z)": ""},
     "only the weight is quantized"),
    ("QF016", FEED_FORWARD, {"f2 = DequantizeLinear(w2, ws, z) m2 = MatMul(hd, f2)": "m2 = MatMul(hd, w2f)"},
     "only the input is quantized"),
    ("QF017", FEED_FORWARD, {"d = DequantizeLinear(q, s, z)": "d = DequantizeLinear(q, s2, z)"},
     "scale or zero point differs from the QuantizeLinear's"),
    ("QF018", FEED_FORWARD, {"q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)":
                             "q = QuantizeLinear<axis=2>(x, ss, zz) d = DequantizeLinear<axis=2>(q, ss, zz)"},
     "activation has 32 scales; expected 1"),
]  # fmt: skip


def _broken(text: str, changes: dict[str, str]) -> onnx.ModelProto:
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new, 1)
    return from_text(text, positive={"ss", "wss"}, zeros={"zs", "zz"})


def _rules(findings: list[Finding]) -> list[str]:
    return [finding.rule for finding in findings]


@pytest.mark.parametrize("text", [FEED_FORWARD, ATTENTION])
def test_a_clean_graph_has_no_findings(text: str) -> None:
    assert lint_model(_broken(text, {}), PROFILES["tensorrt"]) == []


@pytest.mark.parametrize(("rule", "text", "changes", "message"), BREACHES)
def test_a_rule_fires_alone_on_its_breach(rule: str, text: str, changes: dict[str, str], message: str) -> None:
    findings = lint_model(_broken(text, changes), PROFILES["tensorrt"])
    assert set(_rules(findings)) == {rule}, findings
    assert message in {finding.message for finding in findings}
    assert all(finding.node and finding.tensor and finding.advice for finding in findings)


def test_two_nodes_of_one_name_are_found() -> None:
    model = _broken(FEED_FORWARD, {})
    model.graph.node[2].name = model.graph.node[0].name
    (finding,) = lint_model(model, PROFILES["tensorrt"])
    assert str(finding) == "QF013 QuantizeLinear_0 (q): 2 nodes have this name; rename all but one"


def test_a_float_graph_says_that_nothing_is_quantized() -> None:
    assert "QF000" in _rules(lint_model(encoder(), PROFILES["tensorrt"]))


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize(
    "recipe",
    [
        EncoderRecipe(num_layers=2),
        EncoderRecipe(softmax="folded", gate="mlp", head=True),
        EncoderRecipe(softmax="literal", gate="linear", gelu="erf", mask="where"),
        EncoderRecipe(softmax="off_by_one", mask="scaled"),
        EncoderRecipe(softmax="padded"),
        EncoderRecipe(softmax="per_row"),
    ],
)
def test_what_quantize_writes_is_clean_for_its_profile(tmp_path: Path, profile: str, recipe: EncoderRecipe) -> None:
    assert lint(quantized(tmp_path, profile, recipe), profile) == []


@pytest.mark.parametrize("weights", ["mse", "per-channel"])
def test_every_weight_method_is_clean(tmp_path: Path, weights: str) -> None:
    path, cache = calibrated(tmp_path)
    quantize(path, cache, tmp_path / "q.onnx", weights=weights)  # type: ignore[arg-type]
    assert lint(tmp_path / "q.onnx", "tensorrt") == []


def test_what_the_user_excluded_is_no_finding(tmp_path: Path) -> None:
    path, cache = calibrated(tmp_path)
    quantize(path, cache, tmp_path / "q.onnx", choice=SiteChoice(exclude=("w0_w2", "ctx_0")))
    assert lint(tmp_path / "q.onnx", "tensorrt") == []


def test_a_graph_of_another_profile_is_told_apart(tmp_path: Path) -> None:
    out = quantized(tmp_path, "paper")
    assert {"QF001", "QF003", "QF009", "QF011"} <= set(_rules(lint(out, "tensorrt")))


def test_paper_scores_may_be_quantized_before_the_mask_only() -> None:
    name: ProfileName = "paper"
    before = _broken(ATTENTION, {"b = Add(a, mask)": PAIR.format("a") + " b = Add(ad, mask)"})
    after = _broken(ATTENTION, {"p = Softmax<axis=-1>(b)": PAIR.format("b") + " p = Softmax<axis=-1>(bd)"})
    assert "QF003" not in _rules(lint_model(before, PROFILES[name]))
    assert "QF003" in _rules(lint_model(after, PROFILES[name]))


def test_bad_input_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.onnx").write_bytes(b"no model")
    with pytest.raises(ValueError, match="is not an ONNX model"):
        lint(tmp_path / "x.onnx", "tensorrt")
    onnx.save(encoder(), tmp_path / "m.onnx")
    with pytest.raises(ValueError, match="unknown profile 'trt'"):
        lint(tmp_path / "m.onnx", "trt")


def test_what_both_nodes_of_a_pair_have_is_one_finding() -> None:
    pair = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)"
    assert pair in FEED_FORWARD
    for ours, theirs, nodes in (("z3", "z3", 1), ("z3", "z", 1), ("z", "z3", 1)):
        text = FEED_FORWARD.replace(pair, f"q = QuantizeLinear(x, s, {ours}) d = DequantizeLinear(q, s, {theirs})")
        found = [each for each in lint_model(from_text(text), PROFILES["tensorrt"]) if each.rule == "QF001"]
        assert len(found) == nodes
    text = FEED_FORWARD.replace(pair, "q = QuantizeLinear(x, nil, z) d = DequantizeLinear(q, vast, z)")
    assert [each.rule for each in lint_model(from_text(text), PROFILES["tensorrt"])].count("QF002") == 2
