"""A trunk keeps its weights under a new head, and the two fine-tuning tasks learn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from tests.train.encoders import randomize_gates, tiny_encoder
from train.attention.settings import AttentionSettings
from train.checkpoints.checkpoint import load, save
from train.conversion.convert import convert, settings_of
from train.fine_tuning import load_trunk, text_classifier
from train.objectives.labelled_batches import LabelledRows, ScoredPairs, labelled_batches, pair_batch
from train.objectives.sentence_similarity import SentenceSimilarity

GATED = AttentionSettings(gate="linear", gate_init=0.25)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    model = tiny_encoder(3)
    convert(model, GATED)
    randomize_gates(model)
    save(model, tmp_path / "encoder", source=None)
    return tmp_path / "encoder"


def _rows(count: int, *, seed: int = 0) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [generator.integers(5, 50, size=generator.integers(2, 9)) for _ in range(count)]


def test_a_classifier_has_the_checkpoints_trunk_bit_for_bit_gates_included(checkpoint: Path, tmp_path: Path) -> None:
    model = text_classifier(checkpoint, AttentionSettings(), num_labels=3, seed=0)
    assert settings_of(model) == GATED
    stored = load(checkpoint, head="none").state_dict()
    for name, tensor in model.base_model.state_dict().items():
        assert torch.equal(tensor, stored[name]), name
    assert any(".gate." in name for name in stored)
    save(model, tmp_path / "classifier", source=None)
    again = load(tmp_path / "classifier")
    ids = torch.tensor([[5, 6, 7]])
    model.eval()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        logits = model(input_ids=ids).logits
        assert logits.shape == (1, 3)
        assert torch.equal(again(input_ids=ids).logits, logits)


def test_heads_are_a_function_of_the_seed(checkpoint: Path) -> None:
    one, same, other = (
        text_classifier(checkpoint, AttentionSettings(), num_labels=2, seed=seed).get_submodule("classifier").weight
        for seed in (0, 0, 1)
    )
    assert torch.equal(torch.as_tensor(one), torch.as_tensor(same))
    assert not torch.equal(torch.as_tensor(one), torch.as_tensor(other))


def test_gates_are_added_to_a_vanilla_checkpoint_and_refused_on_a_converted_one(
    checkpoint: Path, tmp_path: Path
) -> None:
    save(tiny_encoder(3), tmp_path / "vanilla", source=None)
    assert settings_of(load_trunk(tmp_path / "vanilla", GATED, seed=0)) == GATED
    assert settings_of(load_trunk(tmp_path / "vanilla", AttentionSettings(), seed=0)) == AttentionSettings()
    with pytest.raises(ValueError, match="already converted"):
        load_trunk(checkpoint, GATED, seed=0)


def test_labels_stay_with_their_rows_in_every_division() -> None:
    rows = _rows(40)
    labels = np.array([int(row.sum()) % 7 for row in rows])
    source = LabelledRows(rows, labels, batch_size=8, pad_id=0, seed=1)
    for step in range(10):
        whole = source.batch(step)
        assert torch.equal((whole["input_ids"] * whole["attention_mask"]).sum(1) % 7, whole["labels"])
        parts = [source.batch(step, part=part, num_parts=2)["labels"] for part in range(2)]
        assert sorted(torch.cat(parts).tolist()) == sorted(whole["labels"].tolist())
    held = labelled_batches(rows, labels, batch_size=16, pad_id=0)
    assert [len(batch["labels"]) for batch in held] == [16, 16, 8]
    with pytest.raises(ValueError, match="40 rows and 39 labels"):
        LabelledRows(rows, labels[1:], batch_size=8, pad_id=0, seed=1)


def test_similarity_is_the_squared_error_of_cosines_of_mean_pooled_sentences() -> None:
    model = tiny_encoder(1)
    convert(model, AttentionSettings())
    first, second = _rows(12), _rows(12, seed=1)
    scores = np.random.default_rng(2).random(12).astype(np.float32)
    task = SentenceSimilarity()

    def embed(row: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            hidden = model(input_ids=torch.from_numpy(row)[None]).last_hidden_state[0].double().numpy()
        mean = hidden.mean(0)
        return np.asarray(mean / np.linalg.norm(mean))

    cosines = np.array([embed(a) @ embed(b) for a, b in zip(first, second, strict=True)])
    with torch.no_grad():
        batch = pair_batch(first, second, scores, pad_id=0)
        found = task.figures(model, [batch])
        loss = float(task.loss(model, batch).loss)
    assert loss == pytest.approx(float(np.square(cosines - scores).mean()), rel=1e-4)
    assert found.score == pytest.approx(float(spearmanr(cosines, scores).statistic), abs=1e-6)


def test_pairs_stay_together_and_every_epoch_takes_each_once() -> None:
    first = [np.array([5 + number]) for number in range(10)]
    second = [np.array([25 + number]) for number in range(10)]
    source = ScoredPairs(first, second, np.arange(10, dtype=np.float32), batch_size=5, pad_id=0, seed=0)
    seen = []
    for step in (0, 1):
        whole = source.batch(step)
        a, b = whole["input_ids"][:, 0].chunk(2)
        assert torch.equal(a + 20, b)
        assert torch.equal((a - 5).float(), whole["scores"])
        seen += a.tolist()
    assert sorted(seen) == list(range(5, 15))
    assert source.batch(2)["input_ids"].tolist() != source.batch(0)["input_ids"].tolist()
