"""From texts to the feeds of a graph: its metadata, its tokenizer and its inputs, checked against one another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deploy.backends.artifact_facts import artifact_facts
from deploy.calibration.calibration_subset import Batch, calibration_batches, preprocessing_identity, random_batches
from deploy.data.encoding import TextEncoder
from deploy.data.text_data import data_identity, read_texts
from deploy.graphs.graph_info import TOKENIZER_FILE, GraphInfo
from quietformer.graph_data.sample_texts import texts_or_sample
from quietformer.recipe.text_shape import parse_shape

USUAL_LENGTH = 128
"""Tokens to which texts are cut where nobody says otherwise; fewer where a model has fewer positions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphText:
    """What turns texts into feeds of one graph."""

    info: GraphInfo
    encoder: TextEncoder
    input_names: tuple[str, ...]
    tokenizer_file: Path

    @property
    def usual_shape(self) -> str:
        """One row of the length that the graph takes alone, else of the usual one or as many tokens as the model has positions."""
        return f"1x{self.length or min(USUAL_LENGTH, self.info.max_length)}"

    @property
    def length(self) -> int | None:
        """Tokens that every row is padded to, None where the graph takes any length."""
        return self.info.length

    def feeds(self, token_rows: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """One padded batch of rows, int64 (batch, length) by input."""
        return dict(self.encoder.feeds(token_rows, length=self.length, input_names=self.input_names))

    def calibration_batches(
        self, data: Path | str, *, batches: int, batch_size: int, seed: int, column: str | None = None
    ) -> tuple[Sequence[Batch], list[int]]:
        """A random subset of the texts, and their indices.

        Raises:
            FileNotFoundError: no such data.
            ValueError: an evaluation split, or too few texts.
        """
        return calibration_batches(
            read_texts(data, column=column),
            self.encoder,
            batches=batches,
            batch_size=batch_size,
            seed=seed,
            length=self.length,
            input_names=self.input_names,
        )

    def data_identity(self, data: Path | str, *, column: str | None = None) -> dict[str, Any]:
        """What a calibration cache says of the texts; raises as :meth:`calibration_batches`."""
        return data_identity(data, column=column)

    def preprocessing(self) -> dict[str, Any]:
        """What a calibration cache says of how texts became feeds."""
        return preprocessing_identity(self.encoder, length=self.length)

    def random_batches(self, *, batches: int, batch_size: int, seed: int) -> Sequence[Batch]:
        """Random token ids, as many in every row as the encoder lets through."""
        return random_batches(
            vocab_size=self.info.vocab_size,
            length=self.length or self.encoder.max_length,
            batches=batches,
            batch_size=batch_size,
            seed=seed,
            input_names=self.input_names,
        )

    def full_batch(self, data: Path | str | None, shape: str) -> Batch:
        """One batch without padding to measure latency with.

        Args:
            data: texts; a shipped sample by default.
            shape: batch and length, ``1x128``.

        Raises:
            FileNotFoundError: no such data.
            ValueError: a shape of another form, or a length that the graph does not take.
        """
        batch, length = parse_shape(shape)
        return self.full_rows(texts_or_sample(data), batch=batch, length=length)

    def full_rows(self, texts: Sequence[str], *, batch: int, length: int) -> dict[str, np.ndarray]:
        """A batch without padding: texts run on until each row has ``length`` tokens.

        Raises:
            ValueError: the graph does not take that length, or no text has a word.
        """
        if self.length not in (None, length):
            raise ValueError(f"the graph takes rows of {self.length} tokens; asked for {length}")
        if length > self.info.max_length:
            raise ValueError(f"length {length} is above the model's {self.info.max_length} positions")
        encoder = TextEncoder(self.tokenizer_file, max_length=length, pad_token_id=self.info.pad_token_id)
        joined = " ".join(texts)
        rows: list[np.ndarray] = []
        for start in range(batch):
            text = joined[start * len(joined) // (batch + 1) :]
            row = encoder.encode([text])[0]
            while len(row) < length:
                longer = encoder.encode([f"{text} {joined}"])[0]
                if len(longer) == len(row):
                    raise ValueError("the texts hold no word that the tokenizer knows")
                text, row = f"{text} {joined}", longer
            rows.append(row)
        return dict(encoder.feeds(rows, length=length, input_names=self.input_names))


def graph_text(graph: Path, *, length: int | None = None) -> GraphText:
    """Open what belongs to a graph.

    Args:
        graph: ONNX file with quietformer metadata and its ``tokenizer.json`` beside it, or the folder of an engine.
        length: texts are cut to so many tokens; by default to what the graph takes.

    Raises:
        FileNotFoundError: graph or tokenizer are missing.
        ValueError: not such a graph, the tokenizer of another model, or a length above what the graph takes.
    """
    facts = artifact_facts(graph)
    info = facts.info
    if info.reads != "tokens":
        raise ValueError(f"{graph} reads {'images' if info.reads == 'pixels' else 'arrays'}, not texts")
    longest = info.length or info.max_length
    if length is not None and length > longest:
        what = "static length" if info.length else "positions"
        raise ValueError(f"length {length} is above the {longest} {what} of {graph}")
    tokenizer_file = facts.folder / TOKENIZER_FILE
    encoder = TextEncoder(tokenizer_file, max_length=length or longest, pad_token_id=info.pad_token_id)
    if info.tokenizer_sha256 and encoder.tokenizer_sha256 != info.tokenizer_sha256:
        raise ValueError(f"{tokenizer_file} is not the tokenizer that {graph} was exported with")
    return GraphText(
        info=info,
        encoder=encoder,
        input_names=facts.input_names,
        tokenizer_file=tokenizer_file,
    )
