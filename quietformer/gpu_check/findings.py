"""What a check of a GPU found, as plain values and as a Markdown text that fits into an issue."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from deploy.machine import MachineFacts
from deploy.measuring.bench_report import BenchReport
from deploy.measuring.compare import CompareReport
from quietformer.report.markdown import latency_parts, markdown_table
from quietformer.report.number_text import figure
from quietformer.report.tables import Table, accuracy_table, machine_table


@dataclass(frozen=True, kw_only=True, slots=True)
class Agreement:
    """How far an artifact on the GPU is from its own graph on the CPU."""

    artifact: str
    precision: str
    largest_difference: float
    """Over all outputs, relative to the largest magnitude of each."""
    allowed: float

    @property
    def passed(self) -> bool:
        """Whether it computes what its graph says; a difference that is no number never does."""
        return self.largest_difference <= self.allowed


@dataclass(kw_only=True, slots=True)
class Findings:
    """Filled step by step; a step that fails leaves its reason and the others go on."""

    created: str
    model: str
    backend: str
    """What ran on the GPU."""
    gpu: dict[str, str]
    machine: MachineFacts
    notes: list[str] = field(default_factory=list)
    """What was not done, and why."""
    engines: dict[str, str] = field(default_factory=dict)
    """A line on each engine that was built, by name."""
    agreements: list[Agreement] = field(default_factory=list)
    accuracy: CompareReport | None = None
    latency: list[BenchReport] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    """Message by step."""

    @property
    def passed(self) -> bool:
        """Whether every step was done and every artifact agrees with its graph."""
        return not self.failures and all(agreement.passed for agreement in self.agreements)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        values = asdict(self)
        values["agreements"] = [asdict(one) | {"passed": one.passed} for one in self.agreements]
        return values | {"passed": self.passed}

    def to_markdown(self) -> str:
        """The report."""
        device = ", ".join(self.gpu.values())
        parts = [
            f"# GPU check: {device}",
            f"**{'passed' if self.passed else 'failed'}**: {self.model} on {self.backend}, {self.created}.",
            *(f"> {note}" for note in self.notes),
            *(f"> failed, {step}: {reason}" for step, reason in self.failures.items()),
        ]
        if self.engines:
            rows = tuple((name, told) for name, told in self.engines.items())
            parts += ["## Engines", markdown_table(Table(header=("Engine", ""), rows=rows, text_columns=2))]
        if self.agreements:
            parts += ["## Agreement with the same graph on the CPU", markdown_table(self._agreement_table())]
        if self.accuracy is not None:
            parts += [f"## Accuracy: {self.accuracy.task}", markdown_table(accuracy_table(self.accuracy))]
        parts += latency_parts(self.latency)
        parts += ["## Machine", markdown_table(machine_table(self.machine))]
        return "\n\n".join(parts) + "\n"

    def _agreement_table(self) -> Table:
        return Table(
            header=("Artifact", "Precision", "Largest difference", "Allowed", ""),
            rows=tuple(
                (
                    one.artifact,
                    one.precision,
                    figure(one.largest_difference),
                    figure(one.allowed),
                    "passed" if one.passed else "failed",
                )
                for one in self.agreements
            ),
            text_columns=2,
            caption="Differences relative to the largest magnitude of an output.",
        )
