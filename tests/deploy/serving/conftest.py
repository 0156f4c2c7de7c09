"""The server that most tests talk to: ours, or the one that QUIETFORMER_CONFORMANCE_URL names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.serving.served_model import Server, Target, running, write_model


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The served bundle."""
    return write_model(tmp_path_factory.mktemp("served") / "bundle")


@pytest.fixture(scope="session")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Our server."""
    log = tmp_path_factory.mktemp("log") / "server.log"
    with running(folder, "--grpc-port", "0", log=log) as started:
        yield started


@pytest.fixture(scope="session")
def target(request: pytest.FixtureRequest) -> Target:
    """What the conformance suite runs against.

    QUIETFORMER_CONFORMANCE_URL (http://host:port) and QUIETFORMER_CONFORMANCE_GRPC (host:port) name a Triton that serves
    the model of ``conformance_cases`` instead.
    """
    if url := os.environ.get("QUIETFORMER_CONFORMANCE_URL"):
        return Target(url=url, grpc=os.environ.get("QUIETFORMER_CONFORMANCE_GRPC"), is_triton=True)
    found: Server = request.getfixturevalue("server")
    return found.target
