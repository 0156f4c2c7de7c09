"""Causal language modelling against transformers' own loss."""

import numpy as np
import pytest
import torch

from train.attention.settings import AttentionSettings
from train.batches.token_windows import as_batch
from train.conversion.architecture import ModelDescription, build_model
from train.objectives.causal_lm import CausalLm

TINY_OPT = {
    "vocab_size": 50,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "ffn_dim": 40,
    "max_position_embeddings": 32,
    "word_embed_proj_dim": 24,
    "pad_token_id": 1,
    "dropout": 0.0,
}


@pytest.mark.parametrize(
    "settings",
    [AttentionSettings(), AttentionSettings(gate="linear"), AttentionSettings(softmax="clipped_per_row", alpha=2.0)],
)
def test_loss_is_that_of_the_library_and_figures_average_over_tokens(settings: AttentionSettings) -> None:
    description = ModelDescription(architecture="opt", config=TINY_OPT, head="causal-lm")
    model = build_model(description, settings, seed=0)
    model.eval()  # type: ignore[no-untyped-call]
    generator = np.random.default_rng(0)
    batches = [as_batch(generator.integers(2, 50, size=(rows, 12))) for rows in (2, 5)]
    task = CausalLm()
    with torch.no_grad():
        expected = [
            float(model(input_ids=batch["input_ids"], labels=batch["input_ids"]).loss.double()) for batch in batches
        ]
        found = [float(task.loss(model, batch).loss) for batch in batches]
        figures = task.figures(model, batches).figures
    assert found == pytest.approx(expected, rel=1e-6)
    mean = (2 * expected[0] + 5 * expected[1]) / 7
    assert figures["loss"] == pytest.approx(mean, rel=1e-6)
    assert figures["perplexity"] == pytest.approx(np.exp(mean), rel=1e-5)
