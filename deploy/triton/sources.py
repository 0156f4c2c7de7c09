"""What a repository is made from: a graph, the engines built of it, the tokenizer beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from deploy.backends.artifact import input_shapes
from deploy.backends.engine_report import REPORT_FILE, EngineReport
from deploy.files import sha256_file
from deploy.graphs.graph_info import METADATA_KEY, TOKENIZER_FILE, GraphInfo
from deploy.graphs.graph_structure import read_structure
from deploy.graphs.model_hash import model_sha256
from deploy.serving.artifact_choice import GRAPHS
from deploy.serving.model_signature import FREE, ModelSignature, TensorSpec
from deploy.serving.wire_types import datatype_of

ENGINE_FOLDER = "engine"
"""Of a run directory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine:
    """A folder of ``quietformer build``."""

    folder: Path
    report: EngineReport

    @property
    def file(self) -> Path:
        """The plan."""
        return self.folder / self.report.engine


@dataclass(frozen=True, kw_only=True, slots=True)
class TritonSource:
    """Everything that goes into a repository."""

    graph: Path
    graph_sha256: str
    structure: onnx.ModelProto
    """Of the graph, without external weights."""
    info: GraphInfo | None
    engines: tuple[Engine, ...]
    """For the TensorRT plan; of one graph, each for other GPUs."""
    tokenizer: Path | None


def find_sources(path: Path, *, engines: Sequence[Path] = (), graph: Path | None = None, plan: bool) -> TritonSource:
    """Find what a repository is made from.

    Args:
        path: run directory, bundle, ONNX file or folder of an engine.
        engines: further engines of the same graph, for other GPUs.
        graph: the graph of the engines; None looks for it beside them by the name and hash that they carry.
        plan: whether the TensorRT plan is to be served; engines are looked for only then.

    Raises:
        FileNotFoundError: nothing to serve, or no graph of the engine.
        ValueError: an engine that Triton cannot run or that is of another graph.
    """
    if not path.exists():
        raise FileNotFoundError(f"nothing at {path}; expected a run directory, a bundle, an ONNX file or an engine")
    if not plan:
        if engines or (path.is_dir() and (path / REPORT_FILE).is_file()):
            raise ValueError(f"{(engines or (path,))[0]} is an engine; only --runtime tensorrt serves those")
        return _source(graph or _graph_of(path), ())
    found = [_engine(folder) for folder in (*_engine_folders(path, has_others=bool(engines)), *engines)]
    own = graph or _graph_of_engine(found[0], path)
    for engine in found:
        if engine.report.onnx_sha256 != model_sha256(own):
            raise ValueError(f"{engine.folder} was built from another graph than {own}; name its graph with --graph")
    _refuse_same_gpu(found)
    return _source(own, tuple(found))


def _source(graph: Path, engines: tuple[Engine, ...]) -> TritonSource:
    structure = read_structure(graph)
    is_ours = any(entry.key == METADATA_KEY for entry in structure.metadata_props)
    info = GraphInfo.read(structure, name=str(graph)) if is_ours else None
    tokenizer = graph.parent / TOKENIZER_FILE
    has_tokenizer = tokenizer.is_file()
    if has_tokenizer and info is not None and info.tokenizer_sha256 not in ("", sha256_file(tokenizer)):
        raise ValueError(f"{tokenizer} is not the tokenizer that the graph was exported with; put that one beside it")
    return TritonSource(
        graph=graph,
        graph_sha256=model_sha256(graph),
        structure=structure,
        info=info,
        engines=engines,
        tokenizer=tokenizer if has_tokenizer else None,
    )


def _graph_of(path: Path) -> Path:
    if path.is_file():
        return path
    found = [path / name for name in GRAPHS if (path / name).is_file()]
    if not found:
        raise FileNotFoundError(f"{path} holds no graph to serve; expected {' or '.join(GRAPHS)}")
    return found[0]


def _engine_folders(path: Path, *, has_others: bool) -> list[Path]:
    for folder in (path, path / ENGINE_FOLDER):
        if (folder / REPORT_FILE).is_file():
            return [folder]
    if has_others:
        return []
    raise FileNotFoundError(
        f"{path} holds no engine for --runtime tensorrt: build one with 'quietformer build --backend tensorrt' "
        "inside the image that will serve it"
    )


def _engine(folder: Path) -> Engine:
    report = EngineReport.load(folder)
    if report.backend != "tensorrt":
        raise ValueError(
            f"{folder} is an engine of {report.backend}, which Triton has no backend for; build it with "
            "'quietformer build --backend tensorrt' inside the image that will serve it"
        )
    engine = Engine(folder=folder, report=report)
    if not engine.file.is_file() or sha256_file(engine.file) != report.engine_sha256:
        raise ValueError(f"{engine.file} is missing or not the engine that {REPORT_FILE} describes; build it again")
    if not report.compute_capabilities:
        raise ValueError(f"{folder}/{REPORT_FILE} does not say which GPU the engine is for; build it again")
    return engine


def _graph_of_engine(engine: Engine, path: Path) -> Path:
    places = [folder / engine.report.onnx for folder in (path, engine.folder, engine.folder.parent)]
    for place in places:
        if place.is_file() and model_sha256(place) == engine.report.onnx_sha256:
            return place
    raise FileNotFoundError(
        f"{engine.report.onnx}, which {engine.folder} was built from, is not in {engine.folder.parent}: "
        "Triton needs its inputs and outputs; name it with --graph"
    )


def _refuse_same_gpu(engines: Sequence[Engine]) -> None:
    seen: dict[str, Path] = {}
    for engine in engines:
        for capability in engine.report.compute_capabilities:
            if capability in seen:
                raise ValueError(f"{seen[capability]} and {engine.folder} are both for compute capability {capability}")
            seen[capability] = engine.folder


def graph_signature(model: onnx.ModelProto, *, max_batch_size: int, name: str) -> ModelSignature:
    """Inputs and outputs as a graph declares them.

    The first axis is the batch where every tensor has a free one there, of one name in all inputs.

    Args:
        model: the graph.
        max_batch_size: kept where there is a batch axis; else 0.
        name: of the graph, for messages.

    Raises:
        ValueError: a tensor without declared sizes or of a type that the protocol lacks.
    """
    inputs = input_shapes(model)
    outputs = {value.name: _sizes(value, name) for value in model.graph.output}
    heads = {sizes[0] if sizes else 0 for sizes in inputs.values()}
    has_batch = (
        len(heads) == 1
        and isinstance(next(iter(heads)), str)
        and all(sizes and isinstance(sizes[0], str) for sizes in outputs.values())
    )

    def specs(
        values: Sequence[onnx.ValueInfoProto], shapes: dict[str, tuple[int | str, ...]]
    ) -> tuple[TensorSpec, ...]:
        return tuple(
            TensorSpec(
                name=value.name,
                datatype=datatype_of(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)),
                shape=tuple(
                    size if isinstance(size, int) else FREE for size in shapes[value.name][1 if has_batch else 0 :]
                ),
            )
            for value in values
            if value.name in shapes
        )

    return ModelSignature(
        inputs=specs(model.graph.input, inputs),
        outputs=specs(model.graph.output, outputs),
        max_batch_size=max_batch_size if has_batch else 0,
    )


def _sizes(value: onnx.ValueInfoProto, name: str) -> tuple[int | str, ...]:
    if not value.type.tensor_type.HasField("shape"):
        raise ValueError(f"output '{value.name}' of {name} declares no sizes, which Triton needs")
    return tuple(
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?" for dim in value.type.tensor_type.shape.dim
    )
