"""Calibration on texts: a random subset, encoded for one graph, run once, bound to where it came from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from calibration_data.make import load_set
from deploy.calibrate import RANDOM_KIND, calibrate
from deploy.calibration_cache import CalibrationCache
from deploy.calibration_subset import Batch, calibration_batches, preprocessing_identity, random_batches
from deploy.graph_info import read_info
from deploy.text_data import data_identity, read_texts
from quietformer.graph_text import USUAL_LENGTH, graph_text
from quietformer.progress import Job


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibrationPlan:
    """How much is run, and how ranges are chosen from it."""

    method: str
    batches: int
    batch_size: int
    length: int | None
    """Texts are cut to so many tokens; by default 128, or what the graph takes where that is less."""


def calibrate_on_texts(
    graph: Path, data: Path | str, plan: CalibrationPlan, *, column: str | None = None, seed: int, job: Job
) -> CalibrationCache:
    """Calibrate a float graph on a random subset of texts.

    Args:
        graph: float graph with its tokenizer beside it.
        data: file, folder or ``hf:`` name of texts; an evaluation split is refused.
        plan: how much, and how.
        column: column of the texts in tables.
        seed: chooses the subset.
        job: told of every batch.

    Raises:
        FileNotFoundError: graph, tokenizer or texts are missing.
        ValueError: they do not fit, or there are too few texts.
    """
    text = graph_text(graph, length=_length(graph, plan))
    batches, indices = calibration_feeds(graph, data, plan, column=column, seed=seed)
    return calibrate(
        graph,
        batches,
        method=plan.method,
        data=data_identity(data, column=column) | {"indices": indices},
        seed=seed,
        preprocessing=preprocessing_identity(text.encoder, length=text.length),
        progress=_advance(job),
    )


def calibration_feeds(
    graph: Path, data: Path | str, plan: CalibrationPlan, *, column: str | None = None, seed: int
) -> tuple[list[Batch], list[int]]:
    """The batches that a calibration on texts runs, and the indices of their texts; raises as that."""
    text = graph_text(graph, length=_length(graph, plan))
    return calibration_batches(
        read_texts(data, column=column),
        text.encoder,
        batches=plan.batches,
        batch_size=plan.batch_size,
        seed=seed,
        length=text.length,
        input_names=text.input_names,
    )


def calibrate_on_set(graph: Path, arrays: Path, plan: CalibrationPlan, *, job: Job) -> CalibrationCache:
    """Calibrate on a named set that ``quietformer data`` made, or any ``.npz`` with an array per input: all of it.

    Raises:
        FileNotFoundError: graph or set are missing.
        ValueError: not such a file, or arrays that do not fit the graph.
    """
    batches, identity = load_set(arrays, batch_size=plan.batch_size)
    return calibrate(graph, batches, method=plan.method, data=identity, seed=0, progress=_advance(job))


def calibrate_on_random(graph: Path, plan: CalibrationPlan, *, seed: int, job: Job) -> CalibrationCache:
    """Calibrate on random token ids: ranges that mean nothing, for builds whose accuracy nobody measures.

    Raises:
        FileNotFoundError: no such graph.
        ValueError: a length that the graph does not take.
    """
    text = graph_text(graph, length=_length(graph, plan))
    batches = random_batches(
        vocab_size=text.info.vocab_size,
        length=text.length or text.encoder.max_length,
        batches=plan.batches,
        batch_size=plan.batch_size,
        seed=seed,
        input_names=text.input_names,
    )
    return calibrate(
        graph,
        batches,
        method=plan.method,
        data={"kind": RANDOM_KIND},
        seed=seed,
        allow_random=True,
        progress=_advance(job),
    )


def _length(graph: Path, plan: CalibrationPlan) -> int:
    if plan.length is not None:
        return plan.length
    info = read_info(graph)
    return min(USUAL_LENGTH, info.length or info.max_length)


def _advance(job: Job) -> Callable[[int, int | None], None]:
    def advance(done: int, total: int | None) -> None:
        job.advance(done, total or done)

    return advance
