"""The gradient through a softmax against finite differences of a model whose scores alone are moved."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel, PreTrainedModel

from tests.train.decoders import DECODERS
from tests.train.encoders import VARIANTS, padded_batch, randomize_gates, tiny_encoder
from train.attention.attention_sites import SiteName, attention_sites
from train.attention.settings import AttentionSettings
from train.conversion.convert import convert
from train.families.known_families import layers_of
from train.observation.diagnostic_losses import next_token_loss, projection_loss
from train.observation.softmax_gradient import softmax_gradients

STEP = 1e-6
"""Central differences in float64: truncation about 1e-12, cancellation about 1e-10 relative."""

DIMENSIONS = [0, 7, 13, 22]


def _model(variant: str) -> PreTrainedModel:
    model = tiny_encoder()
    convert(model, VARIANTS[variant])
    randomize_gates(model)
    return model.double()


def _row(row: int, length: int) -> dict[str, torch.Tensor]:
    return {name: tensor[row : row + 1, :length] for name, tensor in padded_batch().items()}


class MovedScores:
    """Loss of a model whose last layer computes its scores, and nothing else, from a moved FFN output of the first layer."""

    def __init__(self, model: PreTrainedModel, batch: dict[str, torch.Tensor]) -> None:
        self._model, self._batch = model, batch
        self._attentions = [modules.attention for modules in layers_of(model)]
        self._ffn_out = layers_of(model)[0].ffn_out

    def __call__(self, move_TD: torch.Tensor) -> float:
        scores = self._scores(move_TD)

        def replace(layer: int, site: SiteName, tensor: torch.Tensor) -> torch.Tensor:
            return scores if (layer, site) == (1, "scores") else tensor

        with torch.no_grad(), attention_sites(self._attentions, replace):
            return float(projection_loss(self._model, self._batch))

    def _scores(self, move_TD: torch.Tensor) -> torch.Tensor:
        found: list[torch.Tensor] = []

        def keep(layer: int, site: SiteName, tensor: torch.Tensor) -> torch.Tensor:
            if (layer, site) == (1, "scores"):
                found.append(tensor)
            return tensor

        handle = self._ffn_out.register_forward_hook(lambda _module, _args, output: output + move_TD.view_as(output))
        with torch.no_grad(), attention_sites(self._attentions, keep):
            self._model(**self._batch)
        handle.remove()
        return found[0]


def _differences(loss: Callable[[torch.Tensor], float], *, num_tokens: int, size: int, step: float) -> np.ndarray:
    """(T, dimensions) derivative by each token's ``DIMENSIONS``."""
    found = np.zeros((num_tokens, len(DIMENSIONS)))
    for token, column in np.ndindex(found.shape):
        move = torch.zeros(num_tokens, size, dtype=torch.float64)
        move[token, DIMENSIONS[column]] = step
        found[token, column] = (loss(move) - loss(-move)) / (2 * step)
    return found


def _decoder(name: str) -> PreTrainedModel:
    model = DECODERS[name]()
    convert(model, AttentionSettings(gate="linear"))
    randomize_gates(model)
    return model.double()


MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    **{f"bert-{name}": partial(_model, name) for name in ("vanilla", "clipped-gamma", "gate-linear")},
    **{name: partial(_decoder, name) for name in DECODERS},
}


@pytest.mark.parametrize("name", MODELS)
def test_the_gradient_through_the_softmax_equals_finite_differences(name: str) -> None:
    model, batch = MODELS[name](), _row(1, 5)
    (found,) = softmax_gradients(model, [batch], projection_loss)
    # Llama computes its norms in float32 whatever the model is in, so it takes a wider step and is less exact.
    step, rtol = (1e-2, 0.02) if name == "llama" else (STEP, 1e-5)
    size = model.config.hidden_size
    gradient_TD = _differences(MovedScores(model, batch), num_tokens=5, size=size, step=step)
    expected_D = np.sqrt((gradient_TD**2).sum(0))
    np.testing.assert_allclose(found.through_softmax[DIMENSIONS], expected_D, rtol=rtol, atol=1e-8)
    assert (found.layer, found.tensor) == (1, "layer.0.ffn_output")


@pytest.mark.parametrize("name", DECODERS)
def test_a_language_model_is_pulled_by_the_loss_of_its_next_tokens(name: str) -> None:
    model, batch = _decoder(name), padded_batch()
    (whole,) = softmax_gradients(model, [batch], next_token_loss)
    rows = [_row(row, length) for row, length in enumerate((9, 5, 1))]
    (found,) = softmax_gradients(model, rows, next_token_loss)
    # Models and loss keep parts in float32, and how its sums are ordered follows shapes and processor.
    np.testing.assert_allclose(found.through_softmax, whole.through_softmax, rtol=1e-6)
    with torch.no_grad():
        own = sum(float(model(**row, labels=row["input_ids"]).loss) for row in rows[:2])
        assert float(next_token_loss(model, batch)) == pytest.approx(own)


def test_the_total_gradient_equals_that_of_the_loss() -> None:
    model, batch = _model("clipped-and-gated"), _row(0, 9)
    (found,) = softmax_gradients(model, [batch], projection_loss)
    bias = model.get_parameter("encoder.layer.0.output.dense.bias")
    (expected_D,) = torch.autograd.grad(projection_loss(model, batch), bias)  # the sum over tokens
    outputs: list[torch.Tensor] = []
    handle = model.get_submodule("encoder.layer.0.output.dense").register_forward_hook(
        lambda _module, _args, output: outputs.append(output)
    )
    loss = projection_loss(model, batch)
    handle.remove()
    (gradient_BTD,) = torch.autograd.grad(loss, outputs)
    torch.testing.assert_close(gradient_BTD.sum(dim=(0, 1)), expected_D)
    np.testing.assert_allclose(found.total, gradient_BTD[0].norm(dim=0).numpy(), rtol=1e-9)


def test_the_size_of_batches_and_what_padding_holds_do_not_matter() -> None:
    model, batch = _model("vanilla"), padded_batch()
    (whole,) = softmax_gradients(model, [batch], projection_loss)
    rows = [_row(row, length) for row, length in enumerate((9, 5, 1))]
    other = {**batch, "input_ids": torch.where(batch["attention_mask"].bool(), batch["input_ids"], 49)}
    for batches in (rows, [other]):
        (found,) = softmax_gradients(model, batches, projection_loss)
        for name in ("through_softmax", "total", "largest"):
            np.testing.assert_allclose(getattr(found, name), getattr(whole, name), rtol=1e-9, err_msg=name)


def test_the_dimension_that_queries_and_keys_read_is_pulled_most() -> None:
    model = _model("vanilla")
    modules = layers_of(model)[1]
    read = 5
    with torch.no_grad():
        for linear in (modules.query.linear, modules.key.linear):
            linear.weight[:, :read] = 0.0
            linear.weight[:, read + 1 :] = 0.0
    (found,) = softmax_gradients(model, [padded_batch()], projection_loss)
    assert found.through_softmax.argmax() == read


def test_nothing_is_pulled_where_a_layer_attends_evenly_whatever_it_reads() -> None:
    model = _model("vanilla")
    torch.nn.init.zeros_(layers_of(model)[1].query.linear.weight)
    torch.nn.init.zeros_(layers_of(model)[1].key.linear.weight)
    (found,) = softmax_gradients(model, [padded_batch()], projection_loss)
    assert not found.through_softmax.any()
    assert found.total.all()
    assert found.rank_correlation is None
    assert found.pull_on_largest is None
    json.dumps(found.to_dict(), allow_nan=False)


def test_parameters_keep_their_gradients_and_the_model_its_mode() -> None:
    model = _model("vanilla")
    model.train()
    softmax_gradients(model, [padded_batch()], projection_loss)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    with pytest.raises(ValueError, match="no token to measure"):
        softmax_gradients(model, [], projection_loss)


def test_a_model_of_one_layer_is_refused() -> None:
    config = BertConfig(vocab_size=50, hidden_size=24, num_hidden_layers=1, num_attention_heads=3, intermediate_size=40)
    model = BertModel(config)
    convert(model, AttentionSettings())
    with pytest.raises(ValueError, match="one layer"):
        softmax_gradients(model, [padded_batch()], projection_loss)
