"""Outlier metrics of a checkpoint on texts: what ``quietformer inspect`` and the outlier stages share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from deploy.encoding import TextEncoder
from quietformer.graph_text import USUAL_LENGTH
from quietformer.progress import Job
from train.checkpoint import load, load_tokenizer_file
from train.checkpoint_files import read_positions
from train.outlier_report import OutlierReport
from train.outliers import measure_outliers
from train.text_batches import sequential_batches


def measure_checkpoint(
    checkpoint: Path, texts: Sequence[str], *, length: int | None = None, batch_size: int = 16, job: Job
) -> OutlierReport:
    """Run a checkpoint over texts and measure its named tensors.

    Args:
        checkpoint: checkpoint folder.
        texts: at least one.
        length: texts are cut to so many tokens; by default 128, or the model's positions where they are fewer.
        batch_size: rows per batch; the figures do not depend on it.
        job: told of every batch.

    Raises:
        FileNotFoundError: checkpoint or tokenizer are missing.
        ValueError: the checkpoint cannot be read, or ``length`` is above its positions.
    """
    model = load(checkpoint, head="none")
    positions = read_positions(checkpoint) or model.config.max_position_embeddings
    length = min(USUAL_LENGTH, positions) if length is None else length
    if length > positions:
        raise ValueError(f"length {length} is above the {positions} positions of {checkpoint}")
    encoder = TextEncoder(load_tokenizer_file(checkpoint), max_length=length)
    rows = encoder.encode(texts)
    batches = sequential_batches(rows, batch_size=batch_size, pad_id=encoder.pad_token_id)
    return measure_outliers(model, _told(batches, job))


def _told(batches: Sequence[Mapping[str, Any]], job: Job) -> Iterator[Mapping[str, Any]]:
    for done, batch in enumerate(batches):
        job.advance(done, len(batches))
        yield batch
