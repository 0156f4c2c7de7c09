"""Masking, and the loss of the predicted positions against transformers' own."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests.train.encoders import tiny_config, tiny_masked_lm
from train.attention.settings import AttentionSettings
from train.batches.masking import IGNORED, MaskedWindows, Masking
from train.batches.token_windows import TokenWindows
from train.conversion.convert import convert
from train.objectives.masked_lm import MaskedLm

MASKING = Masking(mask_id=4, special_ids=(0, 1, 2, 3, 4), vocab_size=50)


def _rows(count: int, length: int = 20) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 50, size=(count, length))


def test_every_row_predicts_the_same_number_of_ordinary_tokens() -> None:
    ids_BT = _rows(300)
    batch = MASKING.apply(ids_BT, np.random.default_rng(1))
    positions, labels = batch["positions"].numpy(), batch["labels"].numpy()
    assert positions.shape == (300, 3)
    assert (np.diff(positions, axis=1) > 0).all()
    np.testing.assert_array_equal(labels, np.take_along_axis(ids_BT, positions, axis=1))
    assert not np.isin(labels, MASKING.special_ids).any()
    untouched = np.ones_like(ids_BT, dtype=bool)
    np.put_along_axis(untouched, positions, False, axis=1)
    np.testing.assert_array_equal(batch["input_ids"].numpy()[untouched], ids_BT[untouched])


def test_predicted_tokens_are_shown_as_the_mask_a_random_token_or_themselves_80_10_10() -> None:
    ids_BT = np.full((4000, 20), 7)
    batch = MASKING.apply(ids_BT, np.random.default_rng(2))
    shown = np.take_along_axis(batch["input_ids"].numpy(), batch["positions"].numpy(), axis=1)
    assert np.mean(shown == 4) == pytest.approx(0.8, abs=0.01)
    others = shown[(shown != 4) & (shown != 7)]
    assert others.size / shown.size == pytest.approx(0.1 * 44 / 45, abs=0.01)
    assert set(others) == set(range(5, 50)) - {7}


def test_a_row_of_special_tokens_predicts_nothing_and_stays_as_it_is() -> None:
    ids_BT = np.array([[2, 3, 0, 1, 4, 2, 3, 9]])
    batch = Masking(mask_id=4, special_ids=(0, 1, 2, 3, 4), vocab_size=50, share=0.25).apply(
        ids_BT, np.random.default_rng(0)
    )
    assert sorted(batch["labels"][0].tolist()) == [IGNORED, 9]
    np.testing.assert_array_equal(batch["input_ids"][0, :7], ids_BT[0, :7])


def test_masks_are_a_function_of_the_step_and_the_same_in_every_division() -> None:
    windows = TokenWindows(_rows(1, 3000)[0].astype(np.uint16), length=20, batch_size=8, seed=0)
    source = MaskedWindows(windows, MASKING, seed=0)
    whole = source.batch(5)
    for name, tensor in whole.items():
        parts = [source.batch(5, part=part, num_parts=4)[name] for part in range(4)]
        assert torch.equal(torch.stack(parts, dim=1).flatten(0, 1), tensor), name
    epoch = windows.batches_per_epoch
    assert not torch.equal(source.batch(5 + epoch)["positions"], whole["positions"])


@pytest.mark.parametrize("settings", [AttentionSettings(), AttentionSettings(gate="linear", gate_init=0.25)])
def test_loss_and_gradients_are_those_of_the_head_on_every_position(settings: AttentionSettings) -> None:
    model = tiny_masked_lm().double()
    convert(model, settings)
    task, batch = MaskedLm(model), MASKING.apply(_rows(4), np.random.default_rng(3))
    labels_BT = torch.full_like(batch["input_ids"], IGNORED).scatter(1, batch["positions"], batch["labels"])

    reference = F.cross_entropy(
        model(input_ids=batch["input_ids"]).logits.flatten(0, 1), labels_BT.flatten(), ignore_index=IGNORED
    )
    expected = torch.autograd.grad(reference, list(model.parameters()), allow_unused=True)
    loss = task.loss(model, batch).loss
    found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    assert loss.item() == pytest.approx(reference.item(), rel=1e-6)  # the task computes its logarithms in float32
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


def test_figures_count_every_predicted_token_once() -> None:
    model = tiny_masked_lm()
    convert(model, AttentionSettings())
    task = MaskedLm(model)
    batches = [MASKING.apply(_rows(rows), np.random.default_rng(rows)) for rows in (2, 5)]
    with torch.no_grad():
        found = task.figures(model, batches)
        losses, hits = [], []
        for batch in batches:
            logits_BTV = model(input_ids=batch["input_ids"]).logits.double()
            for row in range(len(logits_BTV)):
                logits_MV = logits_BTV[row, batch["positions"][row]]
                losses.append(-torch.log_softmax(logits_MV, -1).gather(1, batch["labels"][row][:, None]))
                hits.append((logits_MV.argmax(-1) == batch["labels"][row]).double())
    loss = float(torch.cat(losses).mean())
    assert found.figures["loss"] == pytest.approx(loss, rel=1e-5)
    assert found.figures["perplexity"] == pytest.approx(np.exp(loss), rel=1e-5)
    assert found.figures["accuracy"] == pytest.approx(float(torch.cat(hits).mean()))
    assert found.score == -found.figures["loss"]
    assert tiny_config().vocab_size == MASKING.vocab_size
