"""Calibration on texts or images: a random subset, encoded for one graph, run once, bound to where it came from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from deploy.calibration.calibrate import RANDOM_KIND, calibrate
from deploy.calibration.calibration_cache import CalibrationCache
from deploy.calibration.calibration_subset import Batch
from deploy.data.array_sets import load_set
from deploy.graphs.graph_info import read_info
from quietformer.graph_data.graph_inputs import GraphInputs, graph_inputs
from quietformer.graph_data.graph_text import USUAL_LENGTH
from quietformer.progress import Job


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibrationPlan:
    """How much is run, and how ranges are chosen from it."""

    method: str
    batches: int
    batch_size: int
    parameters: dict[str, float] = field(default_factory=dict)
    """Of the method, where they differ from its defaults."""
    methods: Mapping[str, str] = field(default_factory=dict)
    """Other methods for single tensors, by pattern."""
    length: int | None = None
    """Texts are cut to so many tokens; by default 128, or what the graph takes where that is less. Images have none."""


def calibrate_on_data(
    graph: Path, data: Path | str, plan: CalibrationPlan, *, column: str | None = None, seed: int, job: Job
) -> CalibrationCache:
    """Calibrate a float graph on a random subset of what it reads.

    Args:
        graph: float graph; of texts, with its tokenizer beside it.
        data: file, folder or ``hf:`` name of texts, or file or folder of images; an evaluation split is refused.
        plan: how much, and how.
        column: column of the texts in tables.
        seed: chooses the subset.
        job: told of every batch.

    Raises:
        FileNotFoundError: graph, tokenizer or data are missing.
        ValueError: they do not fit, or there is too little data.
    """
    inputs = _inputs(graph, plan)
    batches, indices = _draw(inputs, data, plan, column=column, seed=seed)
    return calibrate(
        graph,
        batches,
        method=plan.method,
        parameters=plan.parameters,
        methods=plan.methods,
        data=inputs.data_identity(data, column=column) | {"indices": indices},
        seed=seed,
        preprocessing=inputs.preprocessing(),
        progress=_advance(job),
    )


def calibration_feeds(
    graph: Path, data: Path | str, plan: CalibrationPlan, *, column: str | None = None, seed: int
) -> tuple[Sequence[Batch], list[int]]:
    """The batches that a calibration on data runs, and the indices of what was drawn; raises as that."""
    return _draw(_inputs(graph, plan), data, plan, column=column, seed=seed)


def _draw(
    inputs: GraphInputs, data: Path | str, plan: CalibrationPlan, *, column: str | None, seed: int
) -> tuple[Sequence[Batch], list[int]]:
    return inputs.calibration_batches(data, batches=plan.batches, batch_size=plan.batch_size, seed=seed, column=column)


def calibrate_on_set(graph: Path, arrays: Path, plan: CalibrationPlan, *, job: Job) -> CalibrationCache:
    """Calibrate on a named set that ``quietformer data`` made, or any ``.npz`` with an array per input: all of it.

    Raises:
        FileNotFoundError: graph or set are missing.
        ValueError: not such a file, or arrays that do not fit the graph.
    """
    batches, identity = load_set(arrays, batch_size=plan.batch_size)
    return calibrate(
        graph,
        batches,
        method=plan.method,
        parameters=plan.parameters,
        methods=plan.methods,
        data=identity,
        seed=0,
        progress=_advance(job),
    )


def calibrate_on_random(graph: Path, plan: CalibrationPlan, *, seed: int, job: Job) -> CalibrationCache:
    """Calibrate on random ids or noise: ranges that mean nothing, for builds whose accuracy nobody measures.

    Raises:
        FileNotFoundError: no such graph.
        ValueError: a length that the graph does not take.
    """
    inputs = _inputs(graph, plan)
    return calibrate(
        graph,
        inputs.random_batches(batches=plan.batches, batch_size=plan.batch_size, seed=seed),
        method=plan.method,
        parameters=plan.parameters,
        methods=plan.methods,
        data={"kind": RANDOM_KIND},
        seed=seed,
        allow_random=True,
        progress=_advance(job),
    )


def _inputs(graph: Path, plan: CalibrationPlan) -> GraphInputs:
    info = read_info(graph)
    length = plan.length
    if length is None and info.reads == "tokens":
        length = min(USUAL_LENGTH, info.length or info.max_length)
    return graph_inputs(graph, length=length)


def _advance(job: Job) -> Callable[[int, int | None], None]:
    def advance(done: int, total: int | None) -> None:
        job.advance(done, total or done)

    return advance
