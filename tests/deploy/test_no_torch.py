from __future__ import annotations

import pkgutil
import subprocess
import sys
import textwrap
from pathlib import Path

import calibration_data
import deploy
from tests.without_torch import FORBIDDEN

ROOT = Path(__file__).parents[2]


def modules_of(package: object) -> list[str]:
    path, name = package.__path__, package.__name__  # type: ignore[attr-defined]
    return [entry.name for entry in pkgutil.walk_packages(path, prefix=f"{name}.")]


def test_deploy_and_calibration_data_import_where_torch_cannot_be_found() -> None:
    modules = modules_of(deploy) + modules_of(calibration_data)
    assert len(modules) > 20
    code = textwrap.dedent(f"""
        import importlib, sys

        class Absent:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in {FORBIDDEN!r}:
                    raise ModuleNotFoundError(f"{{name}} is not installed", name=name)

        sys.meta_path.insert(0, Absent())
        for module in {modules!r}:
            importlib.import_module(module)
        found = sorted(name for name in sys.modules if name.partition(".")[0] in {FORBIDDEN!r})
        assert not found, found
    """)
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
