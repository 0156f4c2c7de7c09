"""``engine.json``: what an engine was built from, with what, for which devices."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter, ValidationError

ENGINE_FILE = "model.engine"
REPORT_FILE = "engine.json"
FORMAT = 4
"""Of ``engine.json``; raised whenever a field changes its meaning."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineReport:
    """The content of ``engine.json``."""

    format: int
    backend: str
    """``tensorrt`` or ``tensorrt-rtx``."""
    version: str
    """Of the library that built the engine."""
    tools: dict[str, str]
    """Versions of what else took part."""
    compute_capabilities: list[str]
    """Devices that it is for, for example ``8.9``."""
    left_out: dict[str, str]
    """Targets of the usual set that the builder refused for this graph, with its reason."""
    device: str | None
    """Name of the GPU that it was built on; None where none was needed."""
    driver: str | None
    """CUDA version of that GPU's driver."""
    settings: dict[str, Any]
    """Optimization level, compatibility, stripped weights, verbosity."""
    timing_cache: dict[str, Any] | None
    """File name, sha256 and whether it was there before; None where none was used."""
    profile: dict[str, dict[str, list[int]]]
    """Per input: ``min``, ``opt`` and ``max`` shape; empty where every size is fixed."""
    inputs: dict[str, list[int | str]]
    """Sizes of each input of the graph, a name where a size is free."""
    graph_info: dict[str, Any] | None
    """The graph's own metadata; None for a graph that quietformer did not export."""
    onnx: str
    """File name of the graph."""
    onnx_sha256: str
    onnx_bytes: int
    precision: str
    """``int8 + float16``, ``float8 + float16``, ``float32``, …: of the graph's matrix products."""
    weights: dict[str, int]
    """Stored numbers by type, in tensors of two or more dimensions."""
    eight_bit_share: float
    """Share of these that are int8 or FP8."""
    products: dict[str, int]
    """Matrix products of the graph by the types of their operands; what ran is read from the engine on a device."""
    layers: dict[str, int]
    """Layers of the parsed network by the type of what they make."""
    switch_decision: dict[str, Any] | None
    """How the graph's switches that were ``auto`` were decided: :class:`deploy.quantization.switch_decision.SwitchDecision`."""
    engine: str
    """File name of the engine, beside the report."""
    engine_sha256: str
    engine_bytes: int
    num_layers: int
    """Layers of the parsed network, before fusion."""
    parse_seconds: float
    build_seconds: float
    warnings: list[str]
    """What the checks, the parser and the builder said."""
    not_done: str
    """What the machine that built it could not do."""

    def summary(self) -> str:
        """Size, precision, targets and times in a line."""
        title = "FP8" if "float8" in self.precision else "INT8"
        return (
            f"{self.engine_bytes / 1e6:.1f} MB, {self.precision}, {self.eight_bit_share:.0%} of the weights in {title}, "
            f"for SM {', '.join(self.compute_capabilities)}, parsed in {self.parse_seconds:.1f} s, built in "
            f"{self.build_seconds:.1f} s"
        )

    def to_json(self) -> str:
        """The text of ``engine.json``."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read ``engine.json`` of a folder.

        Raises:
            FileNotFoundError: there is none.
            ValueError: damaged, or of another format.
        """
        path = folder / REPORT_FILE
        if not path.is_file():
            raise FileNotFoundError(f"{folder} holds no {REPORT_FILE}: it is not an engine of 'quietformer build'")
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} is not JSON: {error}") from error
        if not isinstance(values, dict) or values.get("format") != FORMAT:
            found = values.get("format") if isinstance(values, dict) else type(values).__name__
            raise ValueError(f"{path} has format {found}; expected {FORMAT}: build the engine again")
        names = [entry.name for entry in fields(cls)]
        if odd := sorted(set(names) ^ set(values)):
            raise ValueError(f"{path} is damaged: '{odd[0]}' is {'missing' if odd[0] in names else 'unknown'}")
        try:
            report = TypeAdapter(cls).validate_python(values)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise ValueError(f"{path} is damaged: '{place}': {first['msg'].lower()}") from error
        report._check(path)
        return report

    def _check(self, path: Path) -> None:
        """Refuse facts that contradict one another."""
        if Path(self.engine).name != self.engine:
            raise ValueError(f"{path} is damaged: engine '{self.engine}' is no name of a file beside it")
        for name, bounds in self.profile.items():
            ranks = {len(self.inputs.get(name, ())), *map(len, bounds.values())}
            if set(bounds) != {"min", "opt", "max"} or len(ranks) > 1:
                raise ValueError(
                    f"{path} is damaged: profile of '{name}' has not one size per axis for min, opt and max"
                )
