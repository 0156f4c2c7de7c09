"""Which artifact a path stands for: a graph, an engine, or the best one of a folder."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from deploy.backends.cpu_choice import usual_cpu_backend
from deploy.backends.engine_report import REPORT_FILE, EngineReport
from deploy.backends.opening import BACKEND_NAMES
from deploy.files import sha256_file
from deploy.graphs.graph_info import TOKENIZER_FILE
from deploy.graphs.model_hash import model_sha256

GRAPHS = ("model.int8.onnx", "model.onnx")
"""Graphs of a run directory or bundle, the preferred one first."""
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedArtifact:
    """What is to be opened, and with what."""

    path: Path
    """ONNX file, or the folder of an engine."""
    backend: str
    """As :func:`deploy.backends.opening.open_backend` calls it."""
    sha256: str
    """Of the model; a reload with another hash is a new version."""
    tokenizer: Path | None
    """The ``tokenizer.json`` that belongs to it."""
    max_batch_size: int | None = None
    """Bound of an engine; None where the artifact has none."""
    max_length: int | None = None
    """Bound of an engine, in tokens."""


def choose_artifact(path: Path, backend: str | None = None) -> ServedArtifact:
    """Find what to serve.

    Args:
        path: ONNX file; folder of an engine; run directory or bundle, of which ``model.int8.onnx`` is taken, or
            ``model.onnx`` where there is none.
        backend: None takes :func:`deploy.backends.cpu_choice.usual_cpu_backend` for a graph, and for an engine the library that built it.

    Raises:
        FileNotFoundError: no such path, or nothing to serve in the folder.
        ValueError: unknown backend, or one that does not run this artifact.
    """
    if backend is not None and backend not in BACKEND_NAMES:
        raise ValueError(f"unknown backend '{backend}'; known backends are {', '.join(BACKEND_NAMES)}")
    if not path.exists():
        raise FileNotFoundError(f"nothing at {path}; expected a run directory, a bundle, an ONNX file or an engine")
    if path.is_dir() and (path / REPORT_FILE).is_file():
        return _engine(path, backend)
    graph = path
    if path.is_dir():
        found = [path / name for name in GRAPHS if (path / name).is_file()]
        if not found:
            raise FileNotFoundError(f"{path} holds nothing to serve; expected {', '.join(GRAPHS)} or {REPORT_FILE}")
        graph = found[0]
    if backend is not None and backend.startswith("tensorrt"):
        raise ValueError(f"backend '{backend}' runs engines; {graph} is a graph: build it with 'quietformer build'")
    return ServedArtifact(
        path=graph,
        backend=backend or usual_cpu_backend([graph]),
        sha256=model_sha256(graph),
        tokenizer=_tokenizer(graph.parent),
    )


def _engine(folder: Path, backend: str | None) -> ServedArtifact:
    report = EngineReport.load(folder)
    if backend not in (None, report.backend):
        raise ValueError(f"{folder} is an engine of {report.backend}; backend '{backend}' cannot run it")
    largest = [bounds["max"] for bounds in report.profile.values()]
    return ServedArtifact(
        path=folder,
        backend=report.backend,
        sha256=sha256_file(folder / report.engine),
        tokenizer=_tokenizer(folder) or _tokenizer(folder.parent),
        max_batch_size=min((sizes[0] for sizes in largest), default=None),
        max_length=min((sizes[1] for sizes in largest if len(sizes) == 2), default=None),
    )


def _tokenizer(folder: Path) -> Path | None:
    file = folder / TOKENIZER_FILE
    return file if file.is_file() else None


def served_name(path: Path) -> str:
    """A name for the model of ``path`` that fits into an address: of its folder, or of the file without its endings."""
    own = path.resolve()
    stem = own.name if own.is_dir() else own.name.partition(".")[0]
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", stem).strip("-.") or "model"


def check_name(name: str) -> None:
    """Whether a name that a person chose fits into an address, and into a repository as a folder.

    Raises:
        ValueError: it does not.
    """
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"'{name}' is no name of a model; expected letters, digits, '_', '-' and '.', no '.' in front")
