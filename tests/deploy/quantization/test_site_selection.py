"""A choice of sites changes exactly what it names, the graph says so, and lint accepts what was chosen."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest

from deploy.graphs.op_precision import op_precisions
from deploy.graphs.profiles import PROFILES, profile_named
from deploy.graphs.site_choice import SiteChoice, literal_pattern, names_match
from deploy.quantization.lint import lint
from deploy.quantization.quantize import quantize
from deploy.quantization.site_listing import list_sites
from deploy.quantization.site_selection import CHOICE_KEY, RecordedChoice, select_sites
from tests.deploy.calibrated import calibrated, run_literally
from tests.deploy.encoder_graph import EncoderRecipe, encoder, feeds

PROFILE_NAMES = list(PROFILES)


def _tensors(profile: str, choice: SiteChoice, recipe: EncoderRecipe | None = None) -> set[str]:
    sites = select_sites(encoder(recipe), profile_named(profile), choice).sites
    return {site.tensor for site in sites.activations} | {site.tensor for site in sites.weights}


@pytest.mark.parametrize("profile", PROFILE_NAMES)
@pytest.mark.parametrize(
    "choice",
    [
        SiteChoice(bmms="on"),
        SiteChoice(residual_adds="on", bmms="on"),
        SiteChoice(gate_path="on"),
        SiteChoice(bmms="off", residual_adds="off", gate_path="off"),
        SiteChoice(exclude=("kind:context",)),
        SiteChoice(exclude=("w0_w2", "x")),
    ],
)
def test_every_choice_gives_a_clean_graph_that_computes(tmp_path: Path, profile: str, choice: SiteChoice) -> None:
    path, cache = calibrated(tmp_path, EncoderRecipe(gate="mlp", softmax="folded", num_layers=2))
    quantize(path, cache, tmp_path / "q.onnx", profile=profile, choice=choice)
    assert lint(tmp_path / "q.onnx", profile) == []
    exact = run_literally(path, feeds())["hidden"]
    error = run_literally(tmp_path / "q.onnx", feeds())["hidden"] - exact
    assert 0 < np.sqrt(np.mean(error**2)) < 0.12 * np.sqrt(np.mean(exact**2))


def test_bmms_in_integers_have_two_integer_operands(tmp_path: Path) -> None:
    path, cache = calibrated(tmp_path)
    quantize(path, cache, tmp_path / "q.onnx", choice=SiteChoice(bmms="on"))
    operations = op_precisions(onnx.load(tmp_path / "q.onnx"))
    assert Counter(operation.precision for operation in operations) == {"int8 x int8": 8}


def test_excluding_an_operand_keeps_the_whole_product_float() -> None:
    choice = SiteChoice(bmms="on", residual_adds="on")
    everything = _tensors("tensorrt", choice)
    without = _tensors("tensorrt", SiteChoice(bmms="on", residual_adds="on", exclude=("prob_0", "o_0")))
    assert everything - without == {"prob_0", "vt_0", "o_0"}


def test_excluding_a_kind_excludes_all_of_it_and_nothing_else() -> None:
    recipe = EncoderRecipe(num_layers=2)
    lost = _tensors("paper", SiteChoice(), recipe) - _tensors("paper", SiteChoice(exclude=("kind:residual_*",)), recipe)
    assert lost == {"r1_0", "r2_0", "r1_1", "r2_1"}
    lost = _tensors("paper", SiteChoice(), recipe) - _tensors("paper", SiteChoice(exclude=("kind:embedding",)), recipe)
    assert lost == {"word_table", "type_table", "position_table"}


def test_heads_small_layers_tensors_and_tables_can_be_included(tmp_path: Path) -> None:
    recipe = EncoderRecipe(head=True)
    added = _tensors("tensorrt", SiteChoice(include=("w_head", "kind:embedding")), recipe) - _tensors(
        "tensorrt", SiteChoice(), recipe
    )
    assert added == {"hidden", "w_head", "word_table", "type_table", "position_table"}
    path, cache = calibrated(tmp_path, recipe)
    summary = quantize(path, cache, tmp_path / "q.onnx", choice=SiteChoice(include=("w_head", "score_0")))
    assert summary.float_linears == {}
    assert lint(tmp_path / "q.onnx", "tensorrt") == []
    recorded = RecordedChoice.read(onnx.load(tmp_path / "q.onnx"))
    assert "score_0" in recorded.included
    assert np.isfinite(run_literally(tmp_path / "q.onnx", feeds())["logits"]).all()


@pytest.mark.parametrize("profile", ["tensorrt", "ort"])
def test_an_embedding_table_in_integers_is_dequantized_after_its_rows_are_gathered(
    tmp_path: Path, profile: str
) -> None:
    path, cache = calibrated(tmp_path)
    for name, include in (("without", ()), ("with", ("kind:embedding",))):
        quantize(path, cache, tmp_path / f"{name}.onnx", profile=profile, choice=SiteChoice(include=include))
    model = onnx.load(tmp_path / "with.onnx")
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    gathers = [node for node in model.graph.node if node.op_type == "Gather" and "table" in node.input[0]]
    readers = {node.input[0]: node.op_type for node in model.graph.node}
    assert len(gathers) == 3
    for gather in gathers:
        assert stored[gather.input[0]].data_type == onnx.TensorProto.INT8
        assert readers[gather.output[0]] == "DequantizeLinear"
    assert lint(tmp_path / "with.onnx", profile) == []
    not_asked = onnx.load(tmp_path / "with.onnx")
    kept = [entry for entry in not_asked.metadata_props if entry.key != CHOICE_KEY]
    del not_asked.metadata_props[:]
    not_asked.metadata_props.extend(kept)
    onnx.save(not_asked, tmp_path / "not-asked.onnx")
    assert [found.rule for found in lint(tmp_path / "not-asked.onnx", profile)] == ["QF011"] * 3
    without = run_literally(tmp_path / "without.onnx", feeds())["hidden"]
    error = run_literally(tmp_path / "with.onnx", feeds())["hidden"] - without
    assert 0 < np.sqrt(np.mean(error**2)) < 0.06 * np.sqrt(np.mean(without**2))


def test_what_is_included_and_excluded_stays_float() -> None:
    both = SiteChoice(include=("score_0",), exclude=("kind:scores",))
    assert _tensors("tensorrt", both) == _tensors("tensorrt", SiteChoice())


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (SiteChoice(exclude=("kind:scores",)), "exclude pattern 'kind:scores' matches nothing"),
        (SiteChoice(exclude=("x", "layer.9*")), r"exclude pattern 'layer\.9\*' matches nothing; \d+ names exist, such as act_0"),
        (SiteChoice(include=("layer.9*",)), r"include pattern 'layer\.9\*' matches nothing"),
        (SiteChoice(include=("w0_qw",)), "include pattern 'w0_qw' matches nothing"),
        (SiteChoice(bmms="auto"), "bmms is 'auto', which takes timing on a device; give off or on here"),
    ],
)  # fmt: skip
def test_what_changes_nothing_or_cannot_be_decided_is_refused(choice: SiteChoice, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        select_sites(encoder(), PROFILES["tensorrt"], choice)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"exclude": ("kind:token",)}, "'kind:token' names no kind; kinds are linear_output, scores"),
        ({"include": (" ",)}, "a pattern is empty"),
        ({"bmms": "maybe"}, "bmms is 'maybe'; expected off, on, auto, or profile"),
    ],
)
def test_choices_that_mean_nothing_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SiteChoice.from_dict(settings)


def test_a_choice_survives_its_plain_form() -> None:
    choice = SiteChoice(exclude=("a*",), include=("kind:scores",), bmms="on", gate_path="off")
    assert SiteChoice.from_dict(choice.to_dict()) == choice


@pytest.mark.parametrize("name", ["onnx::MatMul_[0]", "a*b", "what?", "plain/name"])
def test_the_literal_pattern_of_a_name_means_that_name_only(name: str) -> None:
    assert names_match(literal_pattern(name), (name,), "")
    assert not names_match(literal_pattern(name), (name + "x", "a_b", "whats", "onnx::MatMul_0"), "")


def test_every_site_is_listed_with_what_stays_float_and_why() -> None:
    model = encoder(EncoderRecipe(gate="linear"))
    sites = {site.name: site for site in list_sites(model, PROFILES["tensorrt"], SiteChoice(exclude=("act_0",)))}
    assert sites["act_0"].reason == "excluded by the user"
    assert {site.reason for site in sites.values() if site.kind == "residual_sum"} == {
        "profile tensorrt leaves it; --include takes it in"
    }
    everything = list_sites(model, PROFILES["paper"], SiteChoice())
    assert sum(site.reason is None for site in everything) > sum(site.reason is None for site in sites.values())
    assert {site.name for site in everything} == set(sites)
