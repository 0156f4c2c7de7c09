"""Build, verify and measure on the GPU at hand; what cannot be done is told, and the rest is done all the same.

graphs       float32, float16 and calibrated 8-bit graphs of one checkpoint
engines      of TensorRT where it is installed, else of TensorRT-RTX; else ONNX Runtime's CUDA provider runs the graphs
agreement    each artifact against its own graph on the CPU
accuracy     fidelity to the float32 graph, or STS where data is given
latency      in turns, at every shape
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from calibration_data.sets import SAMPLE_FILE
from deploy.backends.opening import open_backend
from deploy.backends.task_runner import open_for_tasks
from deploy.backends.tensorrt_dialect import TITLES
from deploy.machine import machine_facts
from deploy.measuring.compare import Contender, compare
from quietformer.gpu_check.findings import Agreement, Findings
from quietformer.gpu_check.parts import (
    BATCHES,
    Part,
    gpu_backend,
    gpu_of_this_machine,
    make_graphs,
    make_parts,
    usual_length,
)
from quietformer.graph_data.graph_inputs import graph_inputs
from quietformer.graph_data.task_opening import open_task
from quietformer.latency_measurement import Measured, measure_latency
from quietformer.progress import Job

Made = TypeVar("Made")
ALLOWED = {"float32": 1e-3, "float16": 2e-2, "int8": 0.1, "float8": 0.1}
"""Rounding of other kernels may move a value to the next step of a grid, and that to the next layer's: 8 bits may differ more."""
_ENOUGH = 200
"""Texts that fidelity is measured on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckWishes:
    """What is checked."""

    checkpoint: Path
    name: str
    """As the user called it."""
    data: Path | str | None = None
    """Texts to calibrate and compare on; a shipped sample by default."""
    pairs: str | None = None
    """Scored pairs of sentences: STS instead of fidelity."""
    shapes: Sequence[str] = ()
    """To measure at; 1, 8 and 32 rows of 128 tokens by default, or of as many as the model has positions."""
    seconds: float = 3.0
    repeats: int = 3


def check_gpu(wishes: CheckWishes, out: Path, *, created: str, job: Job) -> Findings:
    """Do everything that this machine can.

    Args:
        wishes: what is checked.
        out: folder for graphs and engines; earlier ones of a check are replaced.
        created: time, for the report.
        job: told what is done.

    Raises:
        ValueError: there is no GPU.
        ImportError: nothing is installed that runs on one.
    """
    device = gpu_of_this_machine()
    backend, notes = gpu_backend()
    findings = Findings(
        created=created,
        model=wishes.name,
        backend=TITLES.get(backend, backend),
        gpu=device.facts(),
        machine=machine_facts(),
        notes=notes,
    )
    check = _Check(wishes, backend, findings, job)
    graphs = check.attempt("graphs", lambda: make_graphs(wishes.checkpoint, wishes.data, out, job=job))
    if graphs is None:
        return findings
    parts = check.attempt(
        "engines",
        lambda: make_parts(
            graphs, out, backend=backend, capability=device.compute_capability, findings=findings, job=job
        ),
    )
    if not parts:
        return findings
    for part in parts:
        check.attempt(f"agreement of {part.name}", partial(check.agree, part))
    check.attempt("accuracy", lambda: check.compare(parts, graphs["float32"]))
    check.attempt("latency", lambda: check.measure(parts, graphs["float32"]))
    return findings


class _Check:
    """The steps on what was built; each leaves what it found in the findings."""

    def __init__(self, wishes: CheckWishes, backend: str, findings: Findings, job: Job) -> None:
        self._wishes, self._backend, self._findings, self._job = wishes, backend, findings, job

    def attempt(self, name: str, work: Callable[[], Made]) -> Made | None:
        """Do a step; what it refuses is written down."""
        self._job.tell(name)
        try:
            return work()
        except (ValueError, OSError, ImportError) as error:
            self._findings.failures[name] = " ".join(str(error).split())
            return None

    def agree(self, part: Part) -> None:
        """Compare an artifact with its own graph on the CPU."""
        feeds = graph_inputs(part.graph).full_batch(self._wishes.data, f"2x{usual_length(part.graph) // 2}")
        with open_backend("onnxruntime", part.graph) as cpu:
            expected = cpu.infer(feeds)
        with open_backend(self._backend, part.artifact) as gpu:
            found = gpu.infer(feeds)
        differences = [
            float(np.abs(found[name] - values).max() / max(float(np.abs(values).max()), np.finfo(np.float32).tiny))
            for name, values in expected.items()
        ]
        kind = next(kind for kind in ("int8", "float8", "float16", "float32") if kind in part.precision)
        self._findings.agreements.append(
            Agreement(
                artifact=part.name,
                precision=part.precision,
                largest_difference=float(np.max(differences)),
                allowed=ALLOWED[kind],
            )
        )

    def compare(self, parts: Sequence[Part], graph: Path) -> None:
        """Score every artifact on a task."""
        pairs, data = self._wishes.pairs, self._wishes.data
        with open_backend("onnxruntime", graph) as reference:
            task, examples = open_task(
                "fidelity" if pairs is None else "sts",
                graph,
                pairs or str(data or SAMPLE_FILE),
                float_infer=reference.infer,
                limit=_ENOUGH if pairs is None else None,
                length=usual_length(graph),
            )
        self._findings.accuracy = compare(
            Contender(
                arm="float32 graph",
                backend="onnxruntime",
                precision="float32",
                artifacts=(partial(open_for_tasks, "onnxruntime", graph),),
            ),
            [
                Contender(
                    arm=part.name,
                    backend=self._backend,
                    precision=part.precision,
                    artifacts=(partial(open_for_tasks, self._backend, part.artifact),),
                    gated=False,
                )
                for part in parts
            ],
            task,
            data=str(pairs or data or "shipped sample"),
            examples=examples,
            progress=self._job.tell,
        )

    def measure(self, parts: Sequence[Part], graph: Path) -> None:
        """Time all artifacts in turns; the first is the baseline."""
        inputs = graph_inputs(graph)
        shapes = self._wishes.shapes or [f"{batch}x{usual_length(graph)}" for batch in BATCHES]
        self._findings.latency = measure_latency(
            [Measured(name=part.name, backend=self._backend, artifact=part.artifact) for part in parts],
            [inputs.full_batch(self._wishes.data, shape) for shape in shapes],
            repeats=self._wishes.repeats,
            seconds=self._wishes.seconds,
            job=self._job,
        )
