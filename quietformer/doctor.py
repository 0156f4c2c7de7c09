"""What this machine can do: backends, devices, instruction sets and versions, and how to get what is missing.

Nothing is loaded that could start a device: packages are looked up, the CUDA driver is asked through its library.
"""

from __future__ import annotations

import ctypes
from dataclasses import asdict, dataclass
from typing import Any

from deploy.machine import INSTRUCTION_SETS, MachineFacts, machine_facts
from quietformer.extras import is_installed

_DRIVER_LIBRARIES = ("libcuda.so.1", "nvcuda.dll")
_NAME_BYTES = 128
_MAJOR, _MINOR = 75, 76
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR of the driver's interface."""


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


@dataclass(frozen=True, kw_only=True, slots=True)
class CudaDevice:
    """A GPU as its driver describes it."""

    name: str
    compute_capability: str
    memory_bytes: int


def cuda_devices() -> tuple[list[CudaDevice], str]:
    """GPUs that the CUDA driver offers, and a word on why there are none."""
    driver = _cuda_driver()
    if driver is None:
        return [], "no CUDA driver library on this machine"
    if code := driver.cuInit(0):
        return [], f"the CUDA driver does not start (error {code})"
    count = ctypes.c_int()
    if code := driver.cuDeviceGetCount(ctypes.byref(count)):
        return [], f"the CUDA driver lists no devices (error {code})"
    return [_cuda_device(driver, index) for index in range(count.value)], "" if count.value else "no GPU present"


def _cuda_driver() -> ctypes.CDLL | None:
    for library in _DRIVER_LIBRARIES:
        try:
            return ctypes.CDLL(library)
        except OSError:
            continue
    return None


def _cuda_device(driver: ctypes.CDLL, index: int) -> CudaDevice:
    handle, major, minor, memory = ctypes.c_int(), ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    name = ctypes.create_string_buffer(_NAME_BYTES)
    driver.cuDeviceGet(ctypes.byref(handle), index)
    driver.cuDeviceGetName(name, _NAME_BYTES, handle)
    driver.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, handle)
    driver.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, handle)
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), handle)
    return CudaDevice(
        name=name.value.decode(errors="replace"),
        compute_capability=f"{major.value}.{minor.value}",
        memory_bytes=memory.value,
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
    speed = "yes" if findings["int8_dot_product"] else "no: INT8 runs, but gains little speed on this processor"
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
