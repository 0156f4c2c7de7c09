"""Sites are found by structure for every attention variant, and each profile takes the ones it documents."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest

from deploy.graphs.profiles import PROFILES, Switch, profile_named
from deploy.graphs.sites import find_sites, observed_tensors
from tests.deploy.encoder_graph import EncoderRecipe, encoder, feeds, from_text

VARIANTS = [
    EncoderRecipe(),
    EncoderRecipe(softmax="folded"),
    EncoderRecipe(softmax="literal", gate="mlp"),
    EncoderRecipe(softmax="off_by_one"),
    EncoderRecipe(softmax="padded", gate="linear"),
    EncoderRecipe(softmax="per_row"),
    EncoderRecipe(gate="linear", gelu="erf"),
    EncoderRecipe(mask="where"),
    EncoderRecipe(mask="scaled"),
    EncoderRecipe(product="scaled"),
    EncoderRecipe(product="divided"),
    EncoderRecipe(product="per_feature"),
]


def _kinds(model: onnx.ModelProto, profile: str) -> dict[str, str]:
    return {site.tensor: site.kind for site in find_sites(model, profile_named(profile)).activations}


@pytest.mark.parametrize("recipe", VARIANTS)
def test_the_small_encoder_runs(recipe: EncoderRecipe) -> None:
    session = onnxruntime.InferenceSession(encoder(recipe).SerializeToString(), providers=["CPUExecutionProvider"])
    (hidden,) = session.run(None, feeds())
    assert np.isfinite(hidden).all()


@pytest.mark.parametrize("recipe", VARIANTS)
@pytest.mark.parametrize("profile", ["tensorrt", "ort"])
def test_input_profiles_take_the_inputs_of_linear_layers_only(recipe: EncoderRecipe, profile: str) -> None:
    kinds = _kinds(encoder(recipe), profile)
    expected = {"x": "layernorm_output", "ctx_0": "context", "n1_0": "layernorm_output"}
    assert {name: kind for name, kind in kinds.items() if kind != "activation_output"} == expected
    assert Counter(kinds.values())["activation_output"] == 1


def test_query_key_and_value_share_one_site() -> None:
    sites = find_sites(encoder(), PROFILES["tensorrt"])
    shared = next(site for site in sites.activations if site.tensor == "x")
    assert [use.node.output[0] for use in shared.readers] == ["qm_0", "km_0", "vm_0"]


def test_the_paper_profile_takes_every_tensor_of_the_layer() -> None:
    assert _kinds(encoder(EncoderRecipe(softmax="folded", mask="scaled")), "paper") == {
        "e2": "embedding_sum",
        "x": "layernorm_output",
        "q_0": "linear_output",
        "k_0": "linear_output",
        "v_0": "linear_output",
        "scaled_0": "scores",
        "prob_0": "probabilities",
        "ctx_0": "context",
        "o_0": "linear_output",
        "r1_0": "residual_sum",
        "n1_0": "layernorm_output",
        "act_0": "activation_output",
        "f2_0": "linear_output",
        "r2_0": "residual_sum",
    }


@pytest.mark.parametrize(("gate", "hidden"), [("linear", {}), ("mlp", {"hr_0": "activation_output"})])
def test_the_paper_profile_takes_the_gate_path_and_the_gated_context(gate: str, hidden: dict[str, str]) -> None:
    kinds = _kinds(encoder(EncoderRecipe(gate=gate)), "paper")
    assert kinds["gs_0"] == "gate_probability"
    assert kinds["ctx_0"] == "context"
    assert hidden.items() <= kinds.items()
    assert kinds["c4_0"] == "values_mixed"
    assert not {"gl_0", "hl_0", "joined_0"} & set(kinds)


@pytest.mark.parametrize("softmax", ["vanilla", "folded", "literal", "per_row", "padded", "off_by_one"])
def test_probabilities_are_what_weighs_the_values(softmax: str) -> None:
    kinds = _kinds(encoder(EncoderRecipe(softmax=softmax)), "paper")
    assert [name for name, kind in kinds.items() if kind == "probabilities"] == ["prob_0"]
    assert [name for name, kind in kinds.items() if kind == "scores"] == ["score_0"]


def test_a_written_out_gelu_is_one_site_after_it() -> None:
    kinds = _kinds(encoder(EncoderRecipe(gelu="erf")), "paper")
    assert kinds["act_0"] == "activation_output"
    assert not {"f1_0", "er_0", "er1_0", "xe_0"} & set(kinds)


def test_small_gemms_stay_float_where_the_profile_says_so() -> None:
    model = encoder(EncoderRecipe(gate="mlp"))
    (left,) = find_sites(model, replace(PROFILES["tensorrt"], gate_path="on")).float_linears
    assert left.node.output[0] == "gm_0"
    assert left.reason == "32x2 has a side below 16"
    assert find_sites(model, PROFILES["paper"]).float_linears == ()


@pytest.mark.parametrize("profile", ["tensorrt", "ort"])
@pytest.mark.parametrize("bmms", ["off", "on"])
@pytest.mark.parametrize("residual_adds", ["off", "on"])
def test_vanilla_clipped_and_gated_models_have_the_same_sites(
    profile: str, bmms: Switch, residual_adds: Switch
) -> None:
    policy = replace(profile_named(profile), bmms=bmms, residual_adds=residual_adds)

    def places(recipe: EncoderRecipe) -> list[tuple[str, list[tuple[str, int]]]]:
        sites = find_sites(encoder(recipe), policy)
        return [(site.tensor, [(use.node.output[0], use.slot) for use in site.readers]) for site in sites.activations]

    vanilla = places(EncoderRecipe())
    for recipe in (EncoderRecipe(softmax="folded"), EncoderRecipe(softmax="literal"), EncoderRecipe(gate="linear"),
                   EncoderRecipe(gate="mlp", softmax="folded")):  # fmt: skip
        assert places(recipe) == vanilla


@pytest.mark.parametrize("gate", ["linear", "mlp"])
def test_without_its_gate_path_the_paper_profile_takes_a_gated_model_as_a_vanilla_one(gate: str) -> None:
    off = replace(PROFILES["paper"], gate_path="off")
    gated, vanilla = (find_sites(encoder(EncoderRecipe(gate=kind)), off) for kind in (gate, "none"))
    assert [site.tensor for site in gated.activations] == [site.tensor for site in vanilla.activations]
    assert [site.tensor for site in gated.weights] == [site.tensor for site in vanilla.weights]
    assert {left.reason for left in gated.float_linears} == {"it makes gates, and the gate path is off"}


def test_products_of_activations_read_integers_on_both_sides_where_bmms_are_on() -> None:
    sites = find_sites(encoder(EncoderRecipe(mask="scaled")), replace(PROFILES["tensorrt"], bmms="on"))
    operands = {site.tensor: (site.measured, site.kind) for site in sites.activations}
    assert operands["qt_0"] == ("q_0", "linear_output")
    assert operands["kt_0"] == ("k_0", "linear_output")
    assert operands["vt_0"] == ("v_0", "linear_output")
    assert operands["prob_0"] == ("prob_0", "probabilities")
    assert "scaled_0" not in operands


@pytest.mark.parametrize(
    ("product", "queries", "keys"),
    [("plain", "q_0", "k_0"), ("scaled", "qs_0", "ks_0"), ("divided", "qs_0", "k_0"), ("per_feature", "q_0", "k_0")],
)
def test_queries_and_keys_become_integers_behind_the_number_they_are_multiplied_with(
    product: str, queries: str, keys: str
) -> None:
    kinds = _kinds(encoder(EncoderRecipe(product=product)), "paper")
    assert {name for name in kinds if name[0] in "qk"} == {queries, keys}
    assert kinds[queries] == kinds[keys] == "linear_output"


def test_switched_off_products_leave_scaled_queries_and_keys_in_float() -> None:
    off = find_sites(encoder(EncoderRecipe(product="scaled")), replace(PROFILES["paper"], bmms="off"))
    assert not {"q_0", "k_0", "qs_0", "ks_0"} & {site.tensor for site in off.activations}


def test_residual_sums_share_the_integers_of_the_linear_layers_beside_them() -> None:
    sites = find_sites(encoder(), replace(PROFILES["tensorrt"], residual_adds="on"))
    readers = {site.tensor: [use.node.output[0] for use in site.readers] for site in sites.activations}
    assert readers["x"] == ["qm_0", "km_0", "vm_0", "r1_0"]
    assert readers["o_0"] == ["r1_0"]
    assert readers["n1_0"] == ["f1m_0", "r2_0"]
    assert readers["f2_0"] == ["r2_0"]


def test_switched_off_products_and_sums_of_the_paper_profile_read_floats() -> None:
    off = find_sites(encoder(), replace(PROFILES["paper"], bmms="off", residual_adds="off"))
    readers = {site.tensor: {use.node.output[0] for use in site.readers} for site in off.activations}
    assert not {"q_0", "k_0", "v_0", "prob_0", "o_0", "f2_0"} & set(readers)
    assert readers["x"] == {"qm_0", "km_0", "vm_0"}
    assert readers["r1_0"] == {"n1_0"}


@pytest.mark.parametrize("profile", PROFILES)
def test_a_head_stays_float(profile: str) -> None:
    sites = find_sites(encoder(EncoderRecipe(head=True)), profile_named(profile))
    assert [left.reason for left in sites.float_linears] == ["its output is an output of the graph"]
    assert not {"logits", "hm"} & {site.tensor for site in sites.activations}
    assert "w_head" not in {site.tensor for site in sites.weights}


@pytest.mark.parametrize("profile", PROFILES)
def test_outputs_of_the_graph_are_no_sites(profile: str) -> None:
    assert "hidden" not in _kinds(encoder(), profile)


def test_weights_of_the_paper_profile_include_tables_and_gains() -> None:
    weights = Counter(site.kind for site in find_sites(encoder(), PROFILES["paper"]).weights)
    assert weights == {"linear": 6, "embedding": 3, "layernorm_gain": 3}


def test_observed_tensors_are_the_union_over_profiles_in_graph_order() -> None:
    model = encoder(EncoderRecipe(gate="mlp", softmax="literal", num_layers=2))
    observed = [tensor.name for tensor in observed_tensors(model)]
    for profile in PROFILES.values():
        for switch in ("off", "on"):
            policy = replace(profile, bmms=switch, residual_adds=switch, gate_path=switch)
            assert {site.measured for site in find_sites(model, policy).activations} <= set(observed)
    assert set(observed) == {site.tensor for site in find_sites(model, PROFILES["paper"]).activations}
    order = [name for node in model.graph.node for name in node.output]
    assert observed == sorted(observed, key=order.index)


def test_observed_tensors_say_which_lie_in_the_unit_interval() -> None:
    observed = observed_tensors(encoder(EncoderRecipe(gate="linear")))
    assert {tensor.name for tensor in observed if tensor.unit_interval} == {"prob_0", "gs_0"}


def test_gemm_convolution_and_transposed_weights_are_linear_layers() -> None:
    model = from_text(
        """g (float[B,3,32,32] image) => (float[B,20] y)
        <float[64,3,16,16] patch, float[64] pb, float[48,64] w, float[48] b, float[32,48] u, float[20,32] head>
        {
            p = Conv<kernel_shape=[16,16], strides=[16,16]>(image, patch, pb)
            m = GlobalAveragePool(p) f = Flatten(m)
            h = Gemm<transB=1>(f, w, b) t = Tanh(h)
            ut = Transpose<perm=[1,0]>(u) z = MatMul(t, ut) zz = Relu(z)
            y = Gemm<transB=1>(zz, head)
        }"""
    )
    sites = find_sites(model, PROFILES["tensorrt"])
    assert [(site.tensor, site.output_axis) for site in sites.weights] == [("patch", 0), ("w", 0), ("ut", 1)]
    assert [(site.tensor, site.kind) for site in sites.activations] == [
        ("image", "linear_input"),
        ("f", "linear_input"),
        ("t", "activation_output"),
    ]


def test_an_unknown_profile_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown profile 'int4'; known profiles are tensorrt, ort, paper"):
        profile_named("int4")
