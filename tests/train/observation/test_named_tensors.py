"""Named tensors are what transformers computes at those places."""

from __future__ import annotations

import pytest
import torch

from tests.train.encoders import padded_batch, tiny_encoder, tiny_masked_lm
from train.families.known_families import MEASURED_KINDS, layers_of
from train.observation.named_tensors import kind_of, named_tensors


def test_every_layer_gives_each_kind_once_in_the_order_of_computation() -> None:
    model = tiny_encoder()
    with named_tensors(model) as tensors:
        model(**padded_batch())
    block = [
        "attention_output",
        "residual_sum.attention",
        "ln_output.attention",
        "ffn_output",
        "residual_sum.ffn",
        "ln_output.ffn",
    ]
    embedding = ["embedding_sum", "embedding_ln_output"]
    assert list(tensors) == embedding + [f"layer.{index}.{kind}" for index in (0, 1) for kind in block]
    assert {kind_of(name) for name in tensors} == set(MEASURED_KINDS)
    assert {tuple(tensor.shape) for tensor in tensors.values()} == {(3, 9, 24)}


def test_tensors_satisfy_the_equations_of_the_block() -> None:
    model = tiny_encoder()
    with torch.no_grad(), named_tensors(model) as tensors:
        states = model(**padded_batch(), output_hidden_states=True).hidden_states
    assert torch.equal(tensors["embedding_ln_output"], states[0])
    for index, layer in enumerate(layers_of(model)):
        name = f"layer.{index}."
        assert torch.equal(tensors[name + "residual_sum.attention"], tensors[name + "attention_output"] + states[index])
        attended = tensors[name + "ln_output.attention"]
        assert torch.equal(layer.attention_norm(tensors[name + "residual_sum.attention"]), attended)
        assert torch.equal(tensors[name + "residual_sum.ffn"], tensors[name + "ffn_output"] + attended)
        assert torch.equal(tensors[name + "ln_output.ffn"], states[index + 1])


def test_a_penalty_on_a_named_tensor_reaches_the_weights_before_it() -> None:
    model = tiny_encoder()
    with named_tensors(model, kinds=["ffn_output"]) as tensors:
        model(**padded_batch())
    assert list(tensors) == ["layer.0.ffn_output", "layer.1.ffn_output"]
    tensors["layer.0.ffn_output"].pow(4).mean().backward()  # type: ignore[no-untyped-call]
    gradient = layers_of(model)[0].ffn_out.weight.grad
    assert gradient is not None
    assert gradient.abs().max() > 0
    assert layers_of(model)[1].ffn_out.weight.grad is None


def test_hooks_are_gone_after_the_block_even_after_an_error() -> None:
    model = tiny_encoder()
    with pytest.raises(RuntimeError, match="stop"), named_tensors(model) as tensors:
        raise RuntimeError("stop")
    model(**padded_batch())
    assert not tensors


def test_the_encoder_inside_a_task_model_is_found() -> None:
    model = tiny_masked_lm()
    with named_tensors(model, kinds=["embedding_sum"]) as tensors:
        model(**padded_batch())
    assert list(tensors) == ["embedding_sum"]


def test_an_unknown_kind_is_refused_with_the_known_ones() -> None:
    unknown = named_tensors(tiny_encoder(), kinds=["ffn"])  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"no tensor 'ffn'; it has attention_output, .*ffn_output"), unknown:
        pass
