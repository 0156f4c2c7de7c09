"""What this machine can do: backends, devices, instruction sets and versions, and how to get what is missing.

Nothing is loaded that could start a device: packages are looked up, the CUDA driver is asked through its library.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from deploy.backends.cuda_devices import cuda_devices
from deploy.machine import INSTRUCTION_SETS, MachineFacts, machine_facts
from quietformer.extras import is_installed


@dataclass(frozen=True, kw_only=True, slots=True)
class Ability:
    """One thing that the program can do here, or how to make it so."""

    name: str
    module: str
    """Import name of the package that does it."""
    distribution: str
    purpose: str
    extra: str
    """Extra of quietformer that installs it."""


ABILITIES = (
    Ability(name="train, retrofit, inspect", module="torch", distribution="torch", purpose="PyTorch", extra="train"),
    Ability(name="checkpoints", module="transformers", distribution="transformers", purpose="models", extra="train"),
    Ability(name="export", module="onnxscript", distribution="onnxscript", purpose="PyTorch to ONNX", extra="export"),
    Ability(name="openvino", module="openvino", distribution="openvino", purpose="default CPU backend", extra="cpu"),
    Ability(
        name="onnxruntime",
        module="onnxruntime",
        distribution="onnxruntime",
        purpose="reference backend, calibration",
        extra="cpu",
    ),
    Ability(
        name="tensorrt-rtx",
        module="tensorrt_rtx",
        distribution="tensorrt-rtx",
        purpose="engines, built without a GPU",
        extra="tensorrt-rtx",
    ),
    Ability(name="parquet", module="pyarrow", distribution="pyarrow", purpose="parquet data", extra="data"),
    Ability(name="hub data", module="datasets", distribution="datasets", purpose="hf:NAME:SPLIT", extra="datasets"),
    Ability(name="plots", module="matplotlib", distribution="matplotlib", purpose="report plots", extra="report"),
    Ability(name="pages", module="jinja2", distribution="Jinja2", purpose="report page", extra="report"),
)


def examine_machine() -> dict[str, Any]:
    """Findings as plain values: ``machine``, ``abilities`` (each with ``version`` or ``get_it``) and ``cuda``."""
    facts = machine_facts()
    devices, why_none = cuda_devices()
    return {
        "machine": asdict(facts),
        "int8_dot_product": facts.has_int8_dot_product,
        "abilities": [_examine(ability, facts) for ability in ABILITIES],
        "cuda": {"devices": [asdict(device) for device in devices], "why_none": why_none},
    }


def _examine(ability: Ability, facts: MachineFacts) -> dict[str, Any]:
    present = is_installed(ability.module)
    return {
        "name": ability.name,
        "purpose": ability.purpose,
        "present": present,
        "version": facts.versions.get(ability.distribution) if present else None,
        "get_it": None if present else f"pip install 'quietformer[{ability.extra}]'",
    }


def findings_table(findings: dict[str, Any]) -> str:
    """The findings of :func:`examine_machine` for people."""
    machine, cuda = findings["machine"], findings["cuda"]
    sets = ", ".join(INSTRUCTION_SETS[flag] for flag in machine["instruction_sets"]) or "none that speeds up INT8"
    memory = f", {machine['memory_bytes'] / 2**30:.0f} GiB" if machine["memory_bytes"] else ""
    slow = "no: INT8 graphs stay exact (OpenVINO computes them in float32, ONNX Runtime in slower integers) and gain little speed"
    speed = "yes" if findings["int8_dot_product"] else slow
    gpus = [
        f"{device['name']}, compute capability {device['compute_capability']}, {device['memory_bytes'] / 2**30:.0f} GiB"
        for device in cuda["devices"]
    ] or [cuda["why_none"]]
    lines = [
        f"processor     {machine['cpu']}, {machine['num_cores']} cores{memory}",
        f"instructions  {sets}",
        f"fast INT8     {speed}",
        *(f"GPU           {gpu}" for gpu in gpus),
        f"system        {machine['system']}, Python {machine['python']}",
        "",
    ]
    for ability in findings["abilities"]:
        state = ability["version"] or "present" if ability["present"] else f"missing: {ability['get_it']}"
        lines.append(f"{ability['name']:<26}{ability['purpose']:<32}{state}")
    return "\n".join(lines)
