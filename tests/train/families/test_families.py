"""Families: layouts found by config, and named tensors that mean the same whatever the layout."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from tests.train.decoders import DECODERS, tiny_llama, tiny_opt
from tests.train.encoders import padded_batch, tiny_encoder
from train.families.known_families import (
    MEASURED_KINDS,
    Projection,
    TensorKind,
    embedding_norm_of,
    family_of,
    family_of_config,
    final_norm_of,
    layers_of,
    norms_of,
)
from train.observation.named_tensors import named_tensors


def _names(model: PreTrainedModel, *, kinds: Iterable[TensorKind] | None = None) -> set[str]:
    with named_tensors(model, kinds=kinds) as tensors:
        model(**padded_batch())
    return set(tensors)


@pytest.mark.parametrize("family", DECODERS)
def test_each_layout_is_found_by_its_config(family: str) -> None:
    assert family_of(DECODERS[family]()).name == family


@pytest.mark.parametrize("family", DECODERS)
def test_named_tensors_satisfy_the_equations_of_the_block_in_every_layout(family: str) -> None:
    model, batch = DECODERS[family](), padded_batch()
    with torch.no_grad(), named_tensors(model) as tensors:
        states = model(**batch, output_hidden_states=True).hidden_states
    B, T = batch["input_ids"].shape
    assert {tuple(x.shape) for x in tensors.values()} == {(B, T, model.config.hidden_size)}
    pre_norm = family != "opt-post-norm"
    layers = layers_of(model)
    of_layers = [kind for kind in MEASURED_KINDS if not kind.startswith("embedding")]
    expected = {"embedding_sum", *(f"layer.{index}.{kind}" for index in range(len(layers)) for kind in of_layers)}
    assert set(tensors) == (expected | {"embedding_ln_output"} if pre_norm else expected)
    for index, layer in enumerate(layers):
        x = {kind: tensors[f"layer.{index}.{kind}"] for kind in of_layers}
        stream = tensors["embedding_sum"] if index == 0 else tensors[f"layer.{index - 1}.residual_sum.ffn"]
        if not pre_norm:
            stream = tensors["embedding_sum"] if index == 0 else tensors[f"layer.{index - 1}.ln_output.ffn"]
        torch.testing.assert_close(x["residual_sum.attention"], stream + x["attention_output"])
        after_attention = x["residual_sum.attention"] if pre_norm else x["ln_output.attention"]
        torch.testing.assert_close(x["residual_sum.ffn"], after_attention + x["ffn_output"])
        norm = layer.ffn_norm if pre_norm else layer.attention_norm
        torch.testing.assert_close(norm(x["residual_sum.attention"]), x["ln_output.attention"])
        if index + 1 < len(layers):
            end_norm = layers[index + 1].attention_norm if pre_norm else layer.ffn_norm
        else:
            end_norm = (final_norm_of(model) if pre_norm else layer.ffn_norm) or nn.Identity()
        torch.testing.assert_close(end_norm(x["residual_sum.ffn"]), x["ln_output.ffn"])
    assert torch.equal(tensors["embedding_sum"], states[0])
    if pre_norm:
        torch.testing.assert_close(layers[0].attention_norm(tensors["embedding_sum"]), tensors["embedding_ln_output"])


def test_a_layout_without_a_kind_leaves_it_out_and_refuses_it_where_it_is_asked_for() -> None:
    model = DECODERS["opt-post-norm"]()
    assert "embedding_ln_output" not in _names(model)
    with pytest.raises(ValueError, match="family 'opt-post-norm' has no tensor 'embedding_ln_output'"):
        _names(model, kinds=["embedding_ln_output"])


def test_a_model_without_final_norm_has_no_tensor_after_it() -> None:
    with_norm, without = tiny_opt(), tiny_opt(_remove_final_layer_norm=True)
    assert final_norm_of(without) is None
    assert _names(with_norm) - _names(without) == {"layer.1.ln_output.ffn"}


def test_every_norm_is_listed_once() -> None:
    for model in (tiny_encoder(), tiny_llama(), tiny_opt()):
        expected = [module for module in model.base_model.modules() if "Norm" in type(module).__name__]
        assert set(norms_of(model)) == set(expected)
        assert len(norms_of(model)) == len(expected) == 5
    assert embedding_norm_of(tiny_llama()) is None


def test_a_gated_ffn_has_two_linear_layers_in_and_every_linear_is_listed_once() -> None:
    layer = layers_of(tiny_llama())[0]
    assert len(layer.ffn_in) == 2
    assert set(layer.linears) == {module for module in layer.layer.modules() if isinstance(module, nn.Linear)}
    assert len(layer.linears) == 7


def test_rows_of_a_fused_projection_are_views_of_its_parameters() -> None:
    fused = nn.Linear(4, 12)
    key = Projection(linear=fused, rows=slice(4, 8))
    before = fused.weight.detach().clone()
    with torch.no_grad():
        key.weight.mul_(2.0)
        assert key.bias is not None
        key.bias.zero_()
    assert torch.equal(fused.weight[4:8], before[4:8] * 2)
    assert torch.equal(fused.weight[:4], before[:4])
    assert not fused.bias[4:8].any()
    assert fused.bias[:4].all()


def test_an_unknown_layout_of_a_known_type_is_refused_with_the_known_ones() -> None:
    config = SimpleNamespace(model_type="opt", do_layer_norm_before=None)
    with pytest.raises(ValueError, match=r"do_layer_norm_before = None; known are opt .* opt-post-norm"):
        family_of_config(config)
