"""What a report says: one typed tree, filled by the pipeline, written as ``report.json`` and read back from it.

A part that was not run is left empty here and left out of the page; nothing is ever filled in.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from deploy.files import write_atomically
from deploy.machine import MachineFacts
from deploy.measuring.bench_report import BenchReport
from deploy.measuring.compare import CompareReport, CompareRow, Evidence
from deploy.quantization.switch_decision import SwitchDecision

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFacts:
    """The model the run started from."""

    name: str
    """For people, for example ``all-MiniLM-L6-v2``."""
    family: str
    """Hugging Face ``model_type``."""
    num_layers: int
    hidden_size: int
    num_parameters: int
    checkpoint_sha256: str
    """Of the original checkpoint's weights."""
    source: str = ""
    """Where it came from, in words."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """One way of training, for example ``gates + penalty``."""

    name: str
    chosen: bool
    """True for the arm that was exported and quantized; the others are shown beside it."""
    attention: dict[str, Any]
    """``AttentionSettings`` as plain values."""
    steps: int
    seconds: float
    """Wall time of the training."""
    settings: dict[str, Any] = field(default_factory=dict)
    """What else the recipe set for it."""
    history: tuple[dict[str, float], ...] = ()
    """Per logged step: ``step`` and any of ``loss``, ``distillation``, ``penalty``, ``largest_activation``, ``simulated``."""
    outliers: dict[str, Any] | None = None
    """``train.observation.outliers.OutlierReport.to_dict()`` of the trained model."""
    compared: tuple[CompareRow, ...] = ()
    """Of an arm from another run: its rows of the first task, float and quantized. The chosen arm's are in the comparisons."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteRange:
    """Calibrated range of one activation."""

    site: str
    """Tensor name, the same before and after where the site exists in both."""
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ParityRow:
    """Agreement of the exported graph with PyTorch at one input shape that it was not traced at."""

    batch: int
    length: int | None
    """In tokens; None where no input has tokens."""
    largest_difference: float
    """Largest absolute difference of the outputs, float32."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportFacts:
    """The exported float graph and the checks it passed."""

    opset: int
    lowering: Literal["folded", "literal"]
    only_standard_operators: bool
    attention_patterns: int
    """How often the expected attention pattern was found; once per layer is right."""
    parity: tuple[ParityRow, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ArtifactFacts:
    """One file of the run."""

    role: Literal[
        "checkpoint",
        "float graph",
        "float16 graph",
        "calibration",
        "int8 graph",
        "int8 graph in float16",
        "fp8 graph",
        "fp8 graph in float16",
        "engine",
    ]
    file: str
    """Relative to the run directory."""
    num_bytes: int
    sha256: str = ""
    note: str = ""
    """For example the profile of a graph."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineFacts:
    """An engine that was built."""

    backend: str
    """``tensorrt-rtx`` or ``tensorrt``."""
    num_bytes: int
    compute_capabilities: tuple[str, ...]
    """For example ``8.0``, ``8.9``."""
    version: str
    evidence: Evidence
    """``measured`` when it ran, ``unverified`` when it was only built."""
    note: str = ""
    """What this machine could not do, in one line."""
    facts: dict[str, Any] = field(default_factory=dict)
    """The rest of ``engine.json``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunReport:
    """Everything a report shows."""

    model: ModelFacts
    created: str
    """UTC time in ISO 8601."""
    machine: MachineFacts
    arms: tuple[Arm, ...] = ()
    outliers_before: dict[str, Any] | None = None
    """``OutlierReport.to_dict()`` of the original model, on the same texts as the arms'."""
    comparisons: tuple[CompareReport, ...] = ()
    """One per task; the first is the headline."""
    latency: tuple[BenchReport, ...] = ()
    """One per input shape; the first is the headline."""
    ranges_before: tuple[SiteRange, ...] = ()
    """Calibrated ranges of the original model's graph."""
    ranges_after: tuple[SiteRange, ...] = ()
    """Of the chosen arm's graph."""
    calibration: dict[str, Any] = field(default_factory=dict)
    """Data, method, samples: as in the calibration cache's head."""
    export: ExportFacts | None = None
    artifacts: tuple[ArtifactFacts, ...] = ()
    engines: tuple[EngineFacts, ...] = ()
    switch_decisions: dict[str, SwitchDecision] = field(default_factory=dict)
    """By graph: how its switches that were ``auto`` were decided."""
    notes: tuple[str, ...] = ()
    """Warnings a reader must see, for example that ranges came from random data."""
    recipe: dict[str, Any] = field(default_factory=dict)
    """The resolved recipe."""
    schema_version: int = SCHEMA_VERSION

    @property
    def chosen_arm(self) -> Arm | None:
        """The arm that was exported and quantized, None when nothing was trained."""
        return next((arm for arm in self.arms if arm.chosen), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def save_report(report: RunReport, path: Path) -> None:
    """Write ``report.json``; a value that JSON cannot hold (NaN, infinity) is a ``ValueError``."""
    write_atomically(path, json.dumps(report.to_dict(), indent=1, allow_nan=False) + "\n")


def load_report(path: Path) -> RunReport:
    """Read ``report.json`` back.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not a report, or one of another schema version; the offending field is named.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no report at {path}")
    return from_dict(json.loads(path.read_text(encoding="utf-8")), name=str(path))


def from_dict(values: Any, *, name: str = "report") -> RunReport:
    """Rebuild from :meth:`RunReport.to_dict`, checking every type.

    Raises:
        ValueError: not a report, or one of another schema version; the offending field is named.
    """
    # Imported here: building the validators of the whole tree takes a while, and most runs only write reports.
    from pydantic import TypeAdapter, ValidationError  # noqa: PLC0415

    found = values.get("schema_version") if isinstance(values, dict) else None
    if found != SCHEMA_VERSION:
        raise ValueError(f"{name} has schema version {found}; this version reads {SCHEMA_VERSION}")
    try:
        return TypeAdapter(RunReport).validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{name} is not a report: {where}: {first['msg']}") from error
