"""A tokenizer and a model small enough to follow by hand, for tests of tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

PAD, CLS, SEP, MASK = 0, 1, 2, 3
VOCAB_SIZE = 60


@dataclass(frozen=True)
class Pair:
    first: str
    second: str
    score: float


class WordEncoder:
    """Words ``w4`` to ``w59`` are the ids 4 to 59; [CLS] before, [SEP] after."""

    def encode(self, texts: Sequence[str], /) -> list[np.ndarray]:
        return [np.array([CLS, *(int(word[1:]) for word in text.split()), SEP]) for text in texts]

    def feeds(
        self, token_rows: Sequence[np.ndarray], /, *, length: int | None, input_names: Sequence[str]
    ) -> dict[str, np.ndarray]:
        width = length or max(len(row) for row in token_rows)
        ids_BT = np.full((len(token_rows), width), PAD, dtype=np.int64)
        mask_BT = np.zeros_like(ids_BT)
        for index, row in enumerate(token_rows):
            ids_BT[index, : len(row)] = row
            mask_BT[index, : len(row)] = 1
        arrays = {"input_ids": ids_BT, "attention_mask": mask_BT}
        return {name: arrays[name] for name in input_names}


INPUTS = ("input_ids", "attention_mask")


class LookupModel:
    """Token features from a fixed table, optionally disturbed; counts its calls."""

    def __init__(self, *, noise: float = 0.0, width: int = 12) -> None:
        generator = np.random.default_rng(0)
        self.table_VD = generator.standard_normal((VOCAB_SIZE, width)).astype(np.float32)
        self.table_VD += noise * np.random.default_rng(1).standard_normal(self.table_VD.shape).astype(np.float32)
        self.batches: list[dict[str, np.ndarray]] = []

    def infer(self, feeds: dict[str, np.ndarray], /) -> dict[str, np.ndarray]:
        self.batches.append(feeds)
        return {"last_hidden_state": self.table_VD[feeds["input_ids"]]}


def random_texts(num_texts: int, *, seed: int = 0) -> list[str]:
    """Texts of 1 to 9 words."""
    generator = np.random.default_rng(seed)
    return [
        " ".join(f"w{word}" for word in generator.integers(4, VOCAB_SIZE, size=generator.integers(1, 10)))
        for _ in range(num_texts)
    ]
