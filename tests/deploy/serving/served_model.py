"""A model folder and a running server for the tests."""

from __future__ import annotations

import http.client
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import onnx

from deploy.files import sha256_file
from deploy.graphs.graph_info import GraphInfo
from tests.deploy.encoder_graph import EncoderRecipe, encoder
from tests.deploy.serving.conformance_cases import MAX_BATCH, MODEL, OUTPUT
from tests.deploy.word_tokenizer import write_tokenizer

ROOT = Path(__file__).parents[3]


def write_model(folder: Path, *, seed: int = 0) -> Path:
    """The small encoder with a tokenizer and mean pooling, as a bundle."""
    folder.mkdir(exist_ok=True)
    model = encoder(EncoderRecipe(seed=seed))
    for values in (model.graph.output, *(node.output for node in model.graph.node)):
        for place, value in enumerate(values):
            if value == "hidden":
                values[place] = OUTPUT
            elif getattr(value, "name", None) == "hidden":
                value.name = OUTPUT
    tokenizer = write_tokenizer(folder / "tokenizer.json")
    info = GraphInfo.read(model, name="encoder")
    replace(info, pooling="mean", tokenizer_sha256=sha256_file(tokenizer)).write(model)
    temporary = folder / "model.onnx.new"
    onnx.save(model, temporary)
    temporary.replace(folder / "model.onnx")
    return folder


@dataclass(frozen=True, kw_only=True)
class Target:
    """A server to test."""

    url: str
    """``http://host:port``."""
    grpc: str | None
    """``host:port``."""
    is_triton: bool = False

    @property
    def address(self) -> str:
        """``host:port`` of HTTP."""
        return urlsplit(self.url).netloc

    def ask(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers (lower case) and body of one request on a connection of its own."""
        connection = http.client.HTTPConnection(self.address, timeout=60)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()


@dataclass(kw_only=True)
class Server:
    """Our server in a process of its own."""

    process: subprocess.Popen[str]
    target: Target
    log: Path


def start(folder: Path, *options: str, log: Path, wait: float = 60) -> Server:
    """Start ``quietformer serve`` on a free port and wait until it is ready."""
    command = [sys.executable, "-m", "quietformer", "serve", str(folder), "--name", MODEL, "--port", "0"]
    command += ["--max-batch-size", str(MAX_BATCH), "--threads", "1", *options]
    with log.open("w") as stream:
        process = subprocess.Popen(
            command, stderr=stream, stdout=stream, text=True, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}
        )
    deadline = time.monotonic() + wait
    while not (found := re.search(r"^ready: (\S+?)(?: and grpc (\S+))?$", log.read_text(), re.MULTILINE)):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise AssertionError(f"the server did not start: {log.read_text()}")
        time.sleep(0.02)
    return Server(process=process, target=Target(url=found[1], grpc=found[2]), log=log)


@contextmanager
def running(folder: Path, *options: str, log: Path) -> Iterator[Server]:
    """A server that is gone afterwards."""
    server = start(folder, *options, log=log)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> None:
    """Ask again and again."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def json_of(body: bytes, headers: dict[str, str]) -> Any:
    """The JSON of an answer, without the raw tensors behind it."""
    import json

    size = int(headers.get("inference-header-content-length", len(body)))
    return json.loads(body[:size])
