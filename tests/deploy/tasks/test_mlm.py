import json
import math
from pathlib import Path

import numpy as np
import pytest

from deploy.tasks.mlm import MaskingTokens, mask_rows, masking_tokens, mlm_task
from tests.deploy.word_encoder import CLS, INPUTS, MASK, PAD, SEP, VOCAB_SIZE, WordEncoder, random_texts

TOKENS = MaskingTokens(mask=MASK, special=(PAD, CLS, SEP, MASK))


class LogitModel:
    """Logits from a table indexed by the input token."""

    def __init__(self, scale: float = 1.0) -> None:
        self.table_VV = (scale * np.random.default_rng(0).standard_normal((VOCAB_SIZE, VOCAB_SIZE))).astype(np.float32)

    def infer(self, feeds: dict[str, np.ndarray], /) -> dict[str, np.ndarray]:
        return {"logits": self.table_VV[feeds["input_ids"]]}


def _rows(num_rows: int = 400) -> list[np.ndarray]:
    return WordEncoder().encode(random_texts(num_rows))


def test_masking_follows_the_seed_and_the_stated_shares() -> None:
    rows = _rows(4000)
    masked, labels = mask_rows(rows, tokens=TOKENS, vocab_size=VOCAB_SIZE, seed=1)
    again, _ = mask_rows(rows, tokens=TOKENS, vocab_size=VOCAB_SIZE, seed=1)
    other, _ = mask_rows(rows, tokens=TOKENS, vocab_size=VOCAB_SIZE, seed=2)
    assert all(np.array_equal(a, b) for a, b in zip(masked, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(masked, other, strict=True))
    before_N, after_N, label_N = (np.concatenate(part) for part in (rows, masked, labels))
    ordinary_N = ~np.isin(before_N, TOKENS.special)
    chosen_N = label_N >= 0
    assert not chosen_N[~ordinary_N].any()
    np.testing.assert_array_equal(after_N[~chosen_N], before_N[~chosen_N])
    np.testing.assert_array_equal(label_N[chosen_N], before_N[chosen_N])
    # About 20,000 ordinary and 3,000 chosen tokens: five standard errors are 0.013 and 0.037.
    assert chosen_N.sum() / ordinary_N.sum() == pytest.approx(0.15, abs=0.013)
    assert (after_N[chosen_N] == MASK).mean() == pytest.approx(0.8, abs=0.037)
    assert (after_N[chosen_N] == before_N[chosen_N]).mean() == pytest.approx(0.1, abs=0.037)


def test_perplexity_equals_a_loop_over_tokens() -> None:
    texts, model = random_texts(60), LogitModel()
    task = mlm_task(
        texts, WordEncoder(), tokens=TOKENS, vocab_size=VOCAB_SIZE, input_names=INPUTS, seed=3, batch_size=5
    )
    masked, labels = mask_rows(WordEncoder().encode(texts), tokens=TOKENS, vocab_size=VOCAB_SIZE, seed=3)
    losses, hits = [], []
    for row, label in zip(masked, labels, strict=True):
        for token, target in zip(row, label, strict=True):
            if target >= 0:
                logits = [float(value) for value in model.table_VV[token]]
                losses.append(math.log(sum(math.exp(value) for value in logits)) - logits[target])
                hits.append(int(np.argmax(logits)) == target)
    result = task.evaluate(model.infer)
    assert task.num_examples == len(losses)
    assert result.score == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-9)
    assert result.details["accuracy"] == pytest.approx(sum(hits) / len(hits))


def test_a_model_that_knows_nothing_has_the_vocabulary_as_perplexity() -> None:
    task = mlm_task(random_texts(30), WordEncoder(), tokens=TOKENS, vocab_size=VOCAB_SIZE, input_names=INPUTS)
    assert task.evaluate(LogitModel(scale=0.0).infer).score == pytest.approx(VOCAB_SIZE)


def test_mask_token_and_special_tokens_come_from_the_tokenizer_file(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    added = [
        {"id": 0, "content": "[PAD]", "special": True},
        {"id": 103, "content": "[MASK]", "special": True},
        {"id": 7, "content": "word", "special": False},
    ]
    path.write_text(json.dumps({"added_tokens": added}))
    assert masking_tokens(path) == MaskingTokens(mask=103, special=(0, 103))
    path.write_text(json.dumps({"added_tokens": added[:1]}))
    with pytest.raises(ValueError, match=r"no mask token .* its special tokens are \[PAD\]"):
        masking_tokens(path)


def test_wrong_graphs_and_texts_too_short_are_refused() -> None:
    task = mlm_task(random_texts(30), WordEncoder(), tokens=TOKENS, vocab_size=VOCAB_SIZE, input_names=INPUTS)
    with pytest.raises(ValueError, match="no output 'logits'; it has last_hidden_state"):
        task.evaluate(lambda feeds: {"last_hidden_state": feeds["input_ids"]})
    with pytest.raises(ValueError, match="not finite"):
        task.evaluate(LogitModel(scale=float("nan")).infer)
    with pytest.raises(ValueError, match="chose no token in 1 texts"):
        mlm_task([""], WordEncoder(), tokens=TOKENS, vocab_size=VOCAB_SIZE, input_names=INPUTS)
