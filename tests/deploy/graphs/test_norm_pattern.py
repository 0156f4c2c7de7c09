"""Norms are found by structure, whole or written out; the SiLU of a gated FFN and its product are told apart."""

from __future__ import annotations

import pytest

from deploy.graphs.graph_index import GraphIndex
from deploy.graphs.graph_patterns import activation_after, find_linears
from deploy.graphs.norm_pattern import find_norms
from deploy.graphs.profiles import PROFILES
from deploy.graphs.sites import find_sites
from tests.deploy.encoder_graph import from_text

ROOT = "square = {square} mean = ReduceMean<keepdims=1>(square, last) safe = Add(mean, epsilon) root = Sqrt(safe)"
FORMS = {
    "division": "unit = Div(x, root) y = Mul(gain, unit)",
    "inverse": "inverse = Reciprocal(root) unit = Mul(x, inverse) y = Mul(unit, gain)",
}
CONSTANTS = "<float two = {2}, int64[1] last = {-1}, float epsilon = {1e-5}, float[32] gain, float[32] bias>"


@pytest.mark.parametrize("square", ["Pow(x, two)", "Mul(x, x)"])
@pytest.mark.parametrize("form", FORMS)
def test_a_written_out_rms_norm_is_found_with_its_gain(form: str, square: str) -> None:
    text = f"g (float[B,T,32] x) => (float[B,T,32] y) {CONSTANTS} {{ {ROOT.format(square=square)} {FORMS[form]} }}"
    (norm,) = find_norms(GraphIndex(from_text(text).graph))
    assert (norm.input, norm.output) == ("x", "y")
    assert norm.gain.node.input[norm.gain.slot] == "gain"


@pytest.mark.parametrize("again", ["d", "e"])
def test_a_written_out_layer_norm_is_found_from_its_input_to_its_bias(again: str) -> None:
    text = f"""g (float[B,T,32] x) => (float[B,T,32] y) {CONSTANTS} {{
        middle = ReduceMean<keepdims=1>(x, last) d = Sub(x, middle) e = Sub(x, middle) square = Mul({again}, {again})
        mean = ReduceMean<keepdims=1>(square, last) safe = Add(mean, epsilon) root = Sqrt(safe)
        unit = Div(d, root) scaled = Mul(unit, gain) y = Add(bias, scaled)
    }}"""
    (norm,) = find_norms(GraphIndex(from_text(text).graph))
    assert (norm.input, norm.output) == ("x", "y")
    assert norm.gain.node.input[norm.gain.slot] == "gain"


def test_whole_norms_are_found() -> None:
    text = f"""g (float[B,T,32] x) => (float[B,T,32] y) {CONSTANTS} {{
        a = LayerNormalization<axis=-1>(x, gain, bias) y = Identity(a)
    }}"""
    (norm,) = find_norms(GraphIndex(from_text(text).graph))
    assert (norm.input, norm.output, norm.gain.slot) == ("x", "a", 1)


@pytest.mark.parametrize(
    "body",
    [
        "unit = Div(x, epsilon) y = Mul(gain, unit)",
        (
            "a = Abs(x) square = Pow(a, two) mean = ReduceMean<keepdims=1>(square, last) safe = Add(mean, epsilon) "
            "root = Sqrt(safe) b = Neg(x) unit = Div(b, root) y = Mul(gain, unit)"
        ),
    ],
)
def test_other_quotients_are_no_norms(body: str) -> None:
    text = f"g (float[B,T,32] x) => (float[B,T,32] y) {CONSTANTS} {{ {body} }}"
    assert find_norms(GraphIndex(from_text(text).graph)) == []


GATED_FFN = f"""g (float[B,T,32] x) => (float[B,T,32] y)
<float two = {{2}}, int64[1] last = {{-1}}, float epsilon = {{1e-5}}, float[32] gain,
 float[32,64] w_gate, float[32,64] w_up, float[64,32] w_down>
{{
    {ROOT.format(square="Pow(x, two)")} unit = Div(x, root) n = Mul(gain, unit)
    gate = MatMul(n, w_gate) s = Sigmoid(gate) silu = Mul(gate, s) up = MatMul(n, w_up) product = Mul(silu, up)
    down = MatMul(product, w_down) sum = Add(x, down) y = Identity(sum)
}}"""


def test_a_silu_is_the_activation_of_its_layer() -> None:
    index = GraphIndex(from_text(GATED_FFN).graph)
    assert [activation_after(index, linear.output) for linear in find_linears(index)] == ["silu", None, None]


@pytest.mark.parametrize(
    "curve",
    [
        "a = Div(f, root2) b = Erf(a) c = Add(b, one) d = Mul(f, c) y = Mul(d, half)",
        "a = Div(f, root2) b = Erf(a) c = Add(b, one) d = Mul(f, half) y = Mul(d, c)",
        (
            "c = Pow(f, three) c2 = Mul(c, tiny) i = Add(f, c2) i2 = Mul(i, root2) t = Tanh(i2) t1 = Add(t, one) "
            "h = Mul(f, half) y = Mul(h, t1)"
        ),
        "c = Mul(f, f) c1 = Mul(c, f) i2 = Mul(c1, tiny) t = Tanh(i2) t1 = Add(t, one) h = Mul(f, half) y = Mul(t1, h)",
        "a = Mul(f, root2) s = Sigmoid(a) y = Mul(f, s)",
    ],
)
def test_gelu_is_found_in_every_spelling(curve: str) -> None:
    text = f"""g (float[B,T,32] x) => (float[B,T,32] z)
    <float one = {{1}}, float half = {{0.5}}, float root2 = {{1.41}}, float three = {{3}}, float tiny = {{0.04}},
     float[32,64] w1, float[64] b1, float[64,32] w2, float[32] b2>
    {{ m = MatMul(x, w1) f = Add(m, b1) {curve} n = MatMul(y, w2) o = Add(n, b2) r = Add(o, x) z = Identity(r) }}"""
    index = GraphIndex(from_text(text).graph)
    assert [activation_after(index, linear.output) for linear in find_linears(index)] == ["y", None]


def test_a_gated_ffn_is_quantized_where_its_layers_read() -> None:
    sites = find_sites(from_text(GATED_FFN), PROFILES["tensorrt"])
    assert {site.tensor: (site.kind, len(site.readers)) for site in sites.activations} == {
        "n": ("layernorm_output", 2),
        "product": ("linear_input", 1),
    }


def test_the_paper_profile_takes_every_tensor_of_a_gated_ffn_and_the_gain() -> None:
    sites = find_sites(from_text(GATED_FFN), PROFILES["paper"])
    kinds = {site.tensor: site.kind for site in sites.activations}
    assert kinds == {
        "n": "layernorm_output",
        "silu": "activation_output",
        "up": "linear_output",
        "product": "linear_input",
        "down": "linear_output",
        "sum": "residual_sum",
    }
    assert [site.tensor for site in sites.weights if site.kind == "layernorm_gain"] == ["gain"]
