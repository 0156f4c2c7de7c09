from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from docker.requirements import requirements

ROOT = Path(__file__).parents[2]
PROJECT = ROOT / "pyproject.toml"


def test_an_extra_brings_what_the_project_and_its_other_extras_need() -> None:
    export = requirements(["export"], PROJECT)
    assert {"numpy>=2", "torch>=2.9", "openvino>=2026.0", "onnxscript>=0.6"} <= set(export)
    assert not any(entry.startswith("quietformer") for entry in export)


def test_what_a_runtime_image_installs_holds_no_torch() -> None:
    names = {entry.partition(">")[0] for entry in requirements(["cpu", "data", "serve"], PROJECT)}
    assert {"onnxruntime", "uvicorn"} <= names
    assert not {"torch", "transformers", "accelerate", "timm", "safetensors"} & names


def test_an_unknown_extra_is_named() -> None:
    with pytest.raises(ValueError, match=r"no extra 'cuda' in .*known are cpu, "):
        requirements(["cuda"], PROJECT)


def test_the_script_needs_nothing_but_the_project_file_beside_it(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "docker/requirements.py"):
        (tmp_path / Path(name).name).write_bytes((ROOT / name).read_bytes())
    run = [sys.executable, "-I", "requirements.py"]
    done = subprocess.run([*run, "cpu"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == requirements(["cpu"], PROJECT)
    refused = subprocess.run([*run, "nothing"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert refused.stderr.startswith("error: no extra 'nothing'")
