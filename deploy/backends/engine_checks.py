"""Refuse an engine that cannot run here, by name and before any object of TensorRT exists.

A foreign or damaged plan, or one for another version or device, ends the process inside the library at worst. What was
built is in ``engine.json``; what is here is asked of the files, the package and the CUDA driver.
"""

from __future__ import annotations

from pathlib import Path

from deploy.backends.cuda_devices import CudaDevice, cuda_devices
from deploy.backends.engine_report import EngineReport
from deploy.backends.tensorrt_dialect import TITLES, Dialect
from deploy.files import sha256_file

_AMPERE = 8


def check_engine_files(folder: Path, *, backend: str) -> EngineReport:
    """Check that a folder holds a whole engine of this backend.

    Raises:
        FileNotFoundError: no such folder, no ``engine.json`` or no engine.
        NotADirectoryError: a file was named.
        ValueError: damaged facts, an engine of another backend, one that is truncated, changed or without its weights.
    """
    if folder.is_file():
        raise NotADirectoryError(f"{folder} is a file; expected the folder that 'quietformer build' wrote")
    if not folder.is_dir():
        raise FileNotFoundError(f"no engine folder at {folder}")
    report = EngineReport.load(folder)
    if report.backend != backend:
        raise ValueError(f"{folder} holds an engine of {report.backend}; expected one of {backend}: they do not mix")
    engine = folder / report.engine
    if not engine.is_file():
        raise FileNotFoundError(f"{folder} names {report.engine}, which is not there")
    size = engine.stat().st_size
    if size != report.engine_bytes:
        what = "is truncated" if size < report.engine_bytes else "is not the engine that was built"
        raise ValueError(f"{engine} {what}: {size} bytes, expected {report.engine_bytes}")
    if (found := sha256_file(engine)) != report.engine_sha256:
        raise ValueError(
            f"{engine} was changed after it was built: sha256 {found[:12]}…, expected {report.engine_sha256[:12]}…"
        )
    if report.settings.get("strip_plan"):
        raise ValueError(f"{engine} was built without its weights (--strip-plan); build it with them to run it")
    return report


def check_version(report: EngineReport, dialect: Dialect) -> None:
    """Check that the library here takes engines of the one that built.

    Raises:
        ValueError: another version; names both.
    """
    if dialect.version == report.version:
        return
    same_major = dialect.version.partition(".")[0] == report.version.partition(".")[0]
    if (
        report.settings.get("version_compatible")
        and same_major
        and _numbers(dialect.version) >= _numbers(report.version)
    ):
        return
    advice = "build it again here" if same_major else "engines never pass from one major version to another"
    raise ValueError(
        f"engine was built with {TITLES[report.backend]} {report.version}, and {dialect.version} is installed; {advice}"
    )


def check_device(report: EngineReport) -> CudaDevice:
    """Check that the first GPU can run an engine.

    Returns:
        That GPU.

    Raises:
        ValueError: there is none, or it has another compute capability than the engine is for.
    """
    devices, why_none = cuda_devices()
    if not devices:
        raise ValueError(f"{TITLES[report.backend]} runs on an NVIDIA GPU: {why_none}")
    device = devices[0]
    found = device.compute_capability
    if found in report.compute_capabilities:
        return device
    level = report.settings.get("hardware_compatibility")
    if level == "ampere+" and int(found.partition(".")[0]) >= _AMPERE:
        return device
    raise ValueError(
        f"engine is for SM {', '.join(report.compute_capabilities)}{' (ampere+)' if level == 'ampere+' else ''}, and "
        f"{device.name} has SM {found}; build it for this one"
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())
