from __future__ import annotations

import ctypes
import json
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from deploy.backends import cuda_devices as probe
from deploy.backends.cuda_devices import CudaDevice, cuda_devices
from quietformer.cli import app
from quietformer.doctor import ABILITIES, examine_machine, findings_table


def test_json_and_table_tell_the_same_abilities() -> None:
    told = CliRunner().invoke(app, ["doctor", "--json"])
    assert told.exit_code == 0
    findings = json.loads(told.stdout)
    assert [ability["name"] for ability in findings["abilities"]] == [ability.name for ability in ABILITIES]
    table = findings_table(findings)
    for ability in findings["abilities"]:
        assert ability["name"] in table


def test_a_missing_package_comes_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    findings = examine_machine()
    assert all(not ability["present"] for ability in findings["abilities"])
    assert "missing: pip install 'quietformer[cpu]'" in findings_table(findings)


def test_every_hint_names_an_extra_that_exists() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert {ability.extra for ability in ABILITIES} <= set(project["optional-dependencies"])


def test_without_a_driver_library_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> ctypes.CDLL:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    assert cuda_devices() == ([], "no CUDA driver library on this machine")


def driver_of_one_gpu(*, start_code: int = 0) -> SimpleNamespace:
    """Answers as libcuda does on a machine with one GPU of compute capability 9.0."""

    def fill(value: Any, number: int, kind: type[ctypes.c_int] | type[ctypes.c_size_t]) -> int:
        ctypes.cast(value, ctypes.POINTER(kind))[0] = number
        return 0

    def name(buffer: ctypes.Array[ctypes.c_char], _size: int, _handle: object) -> int:
        buffer.value = b"NVIDIA Test"
        return 0

    def place(buffer: ctypes.Array[ctypes.c_char], _size: int, _handle: object) -> int:
        buffer.value = b"0000:65:00.0"
        return 0

    return SimpleNamespace(
        cuInit=lambda _flags: start_code,
        cuDeviceGetCount=lambda count: fill(count, 1, ctypes.c_int),
        cuDeviceGet=lambda _handle, _index: 0,
        cuDeviceGetName=name,
        cuDeviceGetAttribute=lambda value, attribute, _handle: fill(value, {75: 9, 76: 0}[attribute], ctypes.c_int),
        cuDriverGetVersion=lambda value: fill(value, 13020, ctypes.c_int),
        cuDeviceGetPCIBusId=place,
        cuDeviceTotalMem_v2=lambda value, _handle: fill(value, 80 << 30, ctypes.c_size_t),
    )


def test_a_gpu_is_described_by_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "load_driver", driver_of_one_gpu)
    devices, why_none = cuda_devices()
    assert not why_none
    assert devices == [
        CudaDevice(
            name="NVIDIA Test", compute_capability="9.0", memory_bytes=80 << 30, driver="13.2", pci="0000:65:00.0"
        )
    ]


def test_a_driver_that_does_not_start_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "load_driver", lambda: driver_of_one_gpu(start_code=999))
    assert cuda_devices() == ([], "the CUDA driver does not start (error 999)")
