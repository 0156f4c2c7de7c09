"""Facts of the machine a figure was measured on: processor, instruction sets, memory, system, tool versions."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_MEMINFO = Path("/proc/meminfo")

INSTRUCTION_SETS = {
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx512_vnni": "AVX-512 VNNI",
    "avx_vnni": "AVX-VNNI",
    "avx512_bf16": "AVX-512 BF16",
    "amx_bf16": "AMX BF16",
    "amx_int8": "AMX INT8",
    "asimddp": "NEON dot product",
    "i8mm": "NEON int8 matrix multiply",
    "sve": "SVE",
}
"""Flags in /proc/cpuinfo that decide how fast 8-bit and 16-bit arithmetic is, with the names people use."""

_INT8_FLAGS = frozenset({"avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm"})

_DISTRIBUTIONS = (
    "quietformer",
    "numpy",
    "onnx",
    "onnxruntime",
    "onnxruntime-gpu",
    "openvino",
    "tensorrt",
    "tensorrt-rtx",
    "scipy",
    "tokenizers",
    "torch",
    "transformers",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineFacts:
    """Where figures come from."""

    cpu: str
    """Processor model."""
    num_cores: int
    """Logical cores this process may run on."""
    instruction_sets: tuple[str, ...]
    """Keys of ``INSTRUCTION_SETS`` that the processor has."""
    memory_bytes: int | None
    """Installed memory, None where the system does not tell."""
    system: str
    """Operating system and its kernel release."""
    python: str
    versions: dict[str, str]
    """Installed distributions that take part, by name."""

    @property
    def has_int8_dot_product(self) -> bool:
        """Whether the processor adds products of 8-bit integers in full width at once; without it INT8 gains little speed."""
        return bool(_INT8_FLAGS & set(self.instruction_sets))

    @property
    def saturates_in_16_bits(self) -> bool:
        """Whether unsigned-by-signed 8-bit kernels of this x86 processor add pairs of products in saturating 16 bits.

        Told by ``/proc/cpuinfo``, so never on systems without it.
        """
        return "avx2" in self.instruction_sets and not self.has_int8_dot_product


def _cpu_model(cpuinfo: str) -> str:
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in {"model name", "Model"}:
            return value.strip()
    return platform.processor() or platform.machine()


def _cpu_flags(cpuinfo: str) -> frozenset[str]:
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in {"flags", "Features"}:
            return frozenset(value.split())
    return frozenset()


def _memory_bytes(meminfo: str) -> int | None:
    for line in meminfo.splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return None


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _num_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def installed_versions() -> dict[str, str]:
    """Versions of the distributions that take part in a run, those that are installed, without importing them."""
    versions = {}
    for name in _DISTRIBUTIONS:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def machine_facts(*, cpuinfo: str | None = None, versions: Mapping[str, str] | None = None) -> MachineFacts:
    """Facts of this machine.

    Args:
        cpuinfo: Text in the format of ``/proc/cpuinfo``, read from this machine when not given.
        versions: Distribution versions, looked up when not given.
    """
    cpuinfo = _read(_CPUINFO) if cpuinfo is None else cpuinfo
    flags = _cpu_flags(cpuinfo)
    return MachineFacts(
        cpu=_cpu_model(cpuinfo),
        num_cores=_num_cores(),
        instruction_sets=tuple(flag for flag in INSTRUCTION_SETS if flag in flags),
        memory_bytes=_memory_bytes(_read(_MEMINFO)),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        versions=dict(installed_versions() if versions is None else versions),
    )
