"""The real ``tritonserver``: started on a repository, asked what it loaded, ended."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.triton.repository_rules import Finding

_ANSWER_SECONDS = 5
_READY = "READY"
MISSING_BACKEND = re.compile(
    r"unable to find (?:backend library|'?libtriton_\w+\.so)[^\"]*?for backend '(\w+)'|no GPUs are available"
)
"""What Triton says of a configuration that it accepts, on a machine or in a build that cannot run it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunningTriton:
    """A server that listens."""

    http: str
    """``host:port``."""
    grpc: str
    metrics: str
    process: subprocess.Popen[bytes]
    log: Path

    def index(self) -> list[dict[str, Any]]:
        """Its models with version, state and reason."""
        status, body = self._ask("POST", "/v2/repository/index", b"{}")
        if status != 200:
            raise ValueError(f"Triton's index answers {status}: {body[:200]!r}")
        found: list[dict[str, Any]] = json.loads(body)
        return found

    def _ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.http, timeout=_ANSWER_SECONDS)
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def has_started(self) -> bool:
        """Whether it has loaded all that it can and listens."""
        try:
            return self._ask("GET", "/v2/health/live")[0] == 200
        except OSError:
            return False


@contextmanager
def running_triton(
    binary: Path,
    repository: Path,
    *,
    options: Sequence[str] = (),
    backends: Path | None = None,
    timeout: float = 120,
) -> Iterator[RunningTriton]:
    """Start a ``tritonserver`` on this machine's own address and end it afterwards.

    Models that do not load do not end it. Configurations are not completed, so that what is missing in one is an error.

    Args:
        binary: ``tritonserver`` of an image (/opt/tritonserver/bin) or of the ``nvidia-pytriton`` wheel.
        repository: folder of models.
        options: further ones of the server.
        backends: folder of further backends, besides those of the server.
        timeout: seconds that loading may take.

    Raises:
        FileNotFoundError: no such binary.
        ValueError: it does not start; the message holds the end of its log.
    """
    if not binary.is_file():
        raise FileNotFoundError(f"no tritonserver at {binary}")
    ports = _free_ports(3)
    root = binary.resolve().parents[1]
    with tempfile.TemporaryDirectory(prefix="quietformer-triton-") as name:
        folder = Path(name)
        command = [
            str(binary), f"--model-repository={repository}", "--disable-auto-complete-config", "--exit-on-error=false",
            f"--backend-directory={_backend_folder(root, backends, folder / 'backends')}", f"--cache-directory={root / 'caches'}",
            "--http-address=127.0.0.1", f"--http-port={ports[0]}", "--grpc-address=127.0.0.1", f"--grpc-port={ports[1]}",
            "--metrics-address=127.0.0.1", f"--metrics-port={ports[2]}", "--exit-timeout-secs=2", *options,
        ]  # fmt: skip
        log = folder / "triton.log"
        with log.open("wb") as stream:
            process = subprocess.Popen(command, stdout=stream, stderr=stream, env=_environment(binary))
        server = RunningTriton(
            http=f"127.0.0.1:{ports[0]}", grpc=f"127.0.0.1:{ports[1]}", metrics=f"127.0.0.1:{ports[2]}",
            process=process, log=log,
        )  # fmt: skip
        try:
            _wait(server, timeout)
            yield server
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _backend_folder(root: Path, more: Path | None, made: Path) -> Path:
    """All backends in one folder, which is what a server reads.

    The wheel keeps the process that runs Python models apart, one for each version of Python.
    """
    stub = root / "python_backend_stubs" / _python_version(root) / "triton_python_backend_stub"
    if more is None and not stub.is_file():
        return root / "backends"
    for folder in (root / "backends", *((more,) if more else ())):  # copies: links that lead elsewhere are refused
        shutil.copytree(folder, made, dirs_exist_ok=True)
    if stub.is_file():
        shutil.copy(stub, made / "python")
    return made


def _python_version(root: Path) -> str:
    found = re.search(r"/python(3\.\d+)/site-packages/", f"{root}/")
    return found[1] if found else ""


def _wait(server: RunningTriton, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while not server.has_started():
        if server.process.poll() is not None or time.monotonic() > deadline:
            text = server.log.read_text(encoding="utf-8", errors="replace").strip()
            raise ValueError(f"tritonserver did not start: {' | '.join(text.splitlines()[-3:])[-600:]}")
        time.sleep(0.1)


def _environment(binary: Path) -> dict[str, str]:
    """Of the server: its own libraries, and for Python models the packages that it is installed among."""
    environment = dict(os.environ)
    # The wheel's stub is linked with libpython, which few interpreters have on the usual path.
    libraries = [str(binary.resolve().parents[1] / "lib"), sysconfig.get_config_var("LIBDIR") or ""]
    if "site-packages" in (parents := [part.name for part in binary.resolve().parents]):
        packages = binary.resolve().parents[parents.index("site-packages")]
        libraries.append(str(packages / "nvidia_pytriton.libs"))
        environment["PYTHONPATH"] = str(packages)
        environment["PATH"] = os.pathsep.join((str(packages.parents[2] / "bin"), environment.get("PATH", "")))
    libraries.append(environment.get("LD_LIBRARY_PATH", ""))
    environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, libraries))
    return environment


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [opened.getsockname()[1] for opened in sockets]
    finally:
        for opened in sockets:
            opened.close()


def check_by_loading(binary: Path, repository: Path, *, backends: Path | None = None) -> list[Finding]:
    """Models that the real Triton does not load.

    A model whose configuration was accepted and whose backend or GPU is not there is no finding: that is all that can
    be known on such a machine.
    """
    with running_triton(binary, repository, backends=backends) as server:
        index = server.index()
        log = server.log.read_text(encoding="utf-8", errors="replace").splitlines()
    refused = {entry["name"]: str(entry.get("reason", "")) for entry in index if entry.get("state") != _READY}
    has_reason = any(refused.values())
    findings = []
    for name, reason in refused.items():
        if MISSING_BACKEND.search(reason) or (not reason and has_reason):
            continue  # without a reason: an ensemble of models that were refused themselves
        said = reason or next(
            (line for line in reversed(log) if line.startswith("E") and f"'{name}'" in line), "no reason given"
        )
        findings.append(Finding(model=name, message=f"Triton does not load it: {said}"))
    return findings
