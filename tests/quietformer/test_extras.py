"""A missing optional package is named together with the extra that installs it."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from quietformer.extras import EXTRAS, describe_import_error, require

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_every_extra_installs_what_is_said_of_it() -> None:
    extras = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    distributions = {"PIL": "pillow"}
    for module, extra in EXTRAS.items():
        distribution = distributions.get(module, module.replace("_", "-"))
        assert any(entry.startswith(distribution) for entry in extras[extra]), module


def test_an_error_of_the_interpreter_gets_the_extra_and_others_stay() -> None:
    missing = ModuleNotFoundError("No module named 'torch.nn'", name="torch.nn")
    assert describe_import_error(missing) == "torch is not installed: pip install 'quietformer[train]'"
    assert describe_import_error(ImportError("parquet needs pyarrow")) == "parquet needs pyarrow"
    unknown = ModuleNotFoundError("No module named 'zzz'", name="zzz")
    assert describe_import_error(unknown) == "No module named 'zzz'"


def test_a_package_is_required_without_importing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    require(["numpy", "quietformer", "onnxruntime"], what="stage 'x'")
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(ImportError, match=r"stage 'bench' needs openvino.*pip install 'quietformer\[cpu\]'"):
        require(["onnxruntime", "openvino"], what="stage 'bench'")
