"""What an artifact says of itself, a graph and the folder of an engine alike: metadata, inputs, where its companions lie."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from deploy.backends.artifact import input_shapes
from deploy.backends.engine_report import REPORT_FILE, EngineReport
from deploy.data.image_preprocessing import PREPROCESSOR_FILE
from deploy.graphs.graph_info import METADATA_KEY, TOKENIZER_FILE, GraphInfo
from deploy.graphs.graph_structure import read_outline

_COMPANIONS = (TOKENIZER_FILE, PREPROCESSOR_FILE)


@dataclass(frozen=True, kw_only=True, slots=True)
class ArtifactFacts:
    """What one must know to feed an artifact."""

    info: GraphInfo
    input_names: tuple[str, ...]
    folder: Path
    """Where its tokenizer lies."""
    engine_backend: str | None = None
    """Backend of an engine; None for a graph."""
    precision: str | None = None
    """Of an engine, as it was built; None for a graph."""


def is_engine(path: Path) -> bool:
    """Whether a path is the folder of an engine."""
    return (path / REPORT_FILE).is_file()


def artifact_facts(path: Path) -> ArtifactFacts:
    """Read what a graph or an engine says of itself; nothing is opened on a device.

    Raises:
        FileNotFoundError: nothing there, or a folder without ``engine.json``.
        ValueError: neither a graph of quietformer nor an engine of one.
    """
    if not path.is_dir():
        structure = read_outline(path)
        return ArtifactFacts(
            info=GraphInfo.read(structure, name=str(path)),
            input_names=tuple(input_shapes(structure)),
            folder=path.parent,
        )
    report = EngineReport.load(path)
    if report.graph_info is None:
        raise ValueError(
            f"{path} was built from a graph that carries no quietformer metadata; export it with quietformer"
        )
    return ArtifactFacts(
        info=info_from_values(report.graph_info, name=str(path)),
        input_names=tuple(report.inputs),
        folder=path,
        engine_backend=report.backend,
        precision=report.precision,
    )


def info_from_values(values: Mapping[str, Any], *, name: str) -> GraphInfo:
    """Metadata of a graph from the values that ``engine.json`` keeps of it.

    Raises:
        ValueError: damaged; ``name`` is the artifact's, for the message.
    """
    carrier = onnx.ModelProto()
    onnx.helper.set_model_props(carrier, {METADATA_KEY: json.dumps(values)})
    return GraphInfo.read(carrier, name=name)


def copy_companions(graph: Path, folder: Path) -> None:
    """Put the files that lie beside a graph and that its data is prepared with into another folder."""
    for name in _COMPANIONS:
        if (graph.parent / name).is_file() and folder.resolve() != graph.parent.resolve():
            shutil.copyfile(graph.parent / name, folder / name)
