"""One run directory for all tests of repositories."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deploy.triton.sources import run_folder


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_folder(tmp_path_factory.mktemp("source") / "run")
