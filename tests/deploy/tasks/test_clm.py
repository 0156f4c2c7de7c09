import math

import numpy as np
import pytest

from deploy.tasks.clm import clm_task
from tests.deploy.word_encoder import INPUTS, VOCAB_SIZE, WordEncoder


class DocumentWords(WordEncoder):
    """Every word of a text, without special tokens."""

    def encode_document(self, text: str, /) -> np.ndarray:
        return np.array([int(word[1:]) for word in text.split()], dtype=np.int64)


class BigramModel:
    """Logits of the next token from a table indexed by the token before it."""

    def __init__(self, scale: float = 1.0) -> None:
        self.table_VV = (scale * np.random.default_rng(0).standard_normal((VOCAB_SIZE, VOCAB_SIZE))).astype(np.float32)
        self.shapes: list[tuple[int, ...]] = []

    def infer(self, feeds: dict[str, np.ndarray], /) -> dict[str, np.ndarray]:
        assert feeds["attention_mask"].all()
        self.shapes.append(feeds["input_ids"].shape)
        return {"logits": self.table_VV[feeds["input_ids"]]}


def _document(num_words: int) -> str:
    return " ".join(f"w{word}" for word in np.random.default_rng(1).integers(4, VOCAB_SIZE, size=num_words))


@pytest.mark.parametrize("batch_size", [1, 2])
def test_perplexity_equals_a_loop_over_the_tokens_of_whole_windows(batch_size: int) -> None:
    document, model = _document(47), BigramModel()
    task = clm_task(document, DocumentWords(), input_names=INPUTS, window=9, batch_size=batch_size)
    ids = [int(word[1:]) for word in document.split()]
    losses, hits = [], []
    for start in range(0, 45, 9):
        for place in range(start, start + 8):
            logits = [float(value) for value in model.table_VV[ids[place]]]
            losses.append(math.log(sum(math.exp(value) for value in logits)) - logits[ids[place + 1]])
            hits.append(int(np.argmax(logits)) == ids[place + 1])
    result = task.evaluate(model.infer)
    assert task.num_examples == len(losses) == 40
    assert result.score == pytest.approx(math.exp(sum(losses) / 40), rel=1e-12)
    assert result.details["loss"] == pytest.approx(sum(losses) / 40, rel=1e-12)
    assert result.details["accuracy"] == sum(hits) / 40
    assert {shape[1] for shape in model.shapes} == {9}
    assert sum(shape[0] for shape in model.shapes) == 5


def test_logits_of_a_long_window_are_scored_piece_by_piece_without_a_difference() -> None:
    model = BigramModel()
    task = clm_task(_document(300), DocumentWords(), input_names=INPUTS, window=300)
    ids_T = task.windows[0]
    logits_NV = model.table_VV[ids_T[:-1]].astype(np.float64)
    losses_N = np.log(np.exp(logits_NV).sum(axis=1)) - logits_NV[np.arange(299), ids_T[1:]]
    assert task.evaluate(model.infer).details["loss"] == pytest.approx(losses_N.mean(), rel=1e-12)


def test_a_limit_counts_windows_and_never_exceeds_them() -> None:
    sizes = [
        len(clm_task(_document(50), DocumentWords(), input_names=INPUTS, window=10, limit=limit).windows)
        for limit in (None, 2, 99)
    ]
    assert sizes == [5, 2, 5]


def test_what_predicts_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="windows of 1 tokens predict nothing"):
        clm_task(_document(50), DocumentWords(), input_names=INPUTS, window=1)
    with pytest.raises(ValueError, match="the text has 50 tokens; expected at least one window of 51"):
        clm_task(_document(50), DocumentWords(), input_names=INPUTS, window=51)
    task = clm_task(_document(50), DocumentWords(), input_names=INPUTS, window=10)
    with pytest.raises(ValueError, match="no output 'logits'; it has last_hidden_state"):
        task.evaluate(lambda feeds: {"last_hidden_state": feeds["input_ids"]})
    with pytest.raises(ValueError, match="logits of window 0 are not finite"):
        task.evaluate(BigramModel(scale=float("nan")).infer)
