"""Build a TensorRT-RTX engine from an ONNX graph. No GPU is needed: this is the real check of a graph on a CPU machine.

What cannot be done here is in :data:`NOT_DONE` and in every ``engine.json``. No ``Runtime`` object is ever made: without
a device it crashes the process.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx

from deploy.backends.artifact import input_shapes
from deploy.backends.base import IDS_NAME
from deploy.files import atomic_path, refuse_existing, sha256_file, write_atomically
from deploy.graph_info import METADATA_KEY, GraphInfo
from deploy.graph_structure import read_structure, stored_bytes
from deploy.model_hash import model_sha256
from deploy.shapes import Shapes, check_profile

try:
    import tensorrt_rtx
except ImportError as error:
    raise ImportError("tensorrt-rtx is not installed: pip install 'quietformer[tensorrt-rtx]'") from error

ENGINE_FILE = "model.engine"
REPORT_FILE = "engine.json"
NOT_DONE = "built, not run: running it, its speed and its accuracy on the device need an NVIDIA GPU"

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineReport:
    """What was built from what; the content of ``engine.json``."""

    backend: str
    version: str
    """Of TensorRT-RTX."""
    compute_capabilities: list[str]
    """Targets, for example ``8.9``."""
    profile: dict[str, dict[str, list[int]]]
    """Per input: ``min``, ``opt`` and ``max`` shape."""
    onnx: str
    """File name of the graph."""
    onnx_sha256: str
    onnx_bytes: int
    engine: str
    """File name of the engine, beside the report."""
    engine_sha256: str
    engine_bytes: int
    num_layers: int
    """Layers of the parsed network, before fusion."""
    parse_seconds: float
    build_seconds: float
    warnings: list[str]
    """What the parser and the builder said."""
    not_done: str
    """What this machine could not do."""


class _Log(tensorrt_rtx.ILogger):  # type: ignore[misc]  # untyped base
    """Keeps warnings and errors instead of printing them."""

    def __init__(self) -> None:
        tensorrt_rtx.ILogger.__init__(self)
        self.warnings: list[str] = []
        self.errors: list[str] = []

    def log(self, severity: Any, message: str) -> None:
        """Called by the library."""
        if severity == tensorrt_rtx.ILogger.WARNING:
            self.warnings.append(message)
        elif severity in (tensorrt_rtx.ILogger.ERROR, tensorrt_rtx.ILogger.INTERNAL_ERROR):
            self.errors.append(message)


def build_engine(
    model_path: Path,
    out_dir: Path,
    *,
    compute_capabilities: Sequence[tuple[int, int]] = ((8, 0), (8, 9)),
    min_shapes: Shapes,
    opt_shapes: Shapes,
    max_shapes: Shapes,
    force: bool = False,
    progress: Progress | None = None,
) -> EngineReport:
    """Parse a graph and build an engine; write ``model.engine`` and ``engine.json``.

    Args:
        model_path: ONNX graph; integers must be signed with zero point 0 (profile ``tensorrt``).
        out_dir: folder, made when missing.
        compute_capabilities: GPUs to build for, as (major, minor).
        min_shapes: least sizes of each input.
        opt_shapes: sizes to be fastest at.
        max_shapes: greatest sizes.
        force: replace an earlier engine.
        progress: told what is happening, one line at a time.

    Raises:
        FileExistsError: an engine is there and ``force`` is not set.
        FileNotFoundError: no such graph.
        ValueError: not a graph, shapes that do not fit it, an unknown target, or the parser or builder refuses (with
            node, operator and reason).
    """
    say = progress or (lambda line: None)
    for name in (ENGINE_FILE, REPORT_FILE):
        refuse_existing(out_dir / name, force=force)
    targets = [find_capability(major, minor) for major, minor in compute_capabilities]
    if not targets:
        raise ValueError("no compute capability to build for")
    structure = read_structure(model_path)
    check_profile(input_shapes(structure), smallest=min_shapes, usual=opt_shapes, largest=max_shapes)
    _check_positions(structure, model_path, max_shapes)
    log = _Log()
    builder = tensorrt_rtx.Builder(log)
    flags = 1 << int(tensorrt_rtx.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    network = builder.create_network(flags)
    say(f"parsing {model_path}")
    with _signals_held_back():
        parse_seconds = _parse(network, log, model_path)
    names = [f"{major}.{minor}" for major, minor in compute_capabilities]
    say(f"building for SM {', '.join(names)}")
    start = time.perf_counter()
    config = _configure(builder, targets, min_shapes, opt_shapes, max_shapes)
    with _signals_held_back():
        plan = builder.build_serialized_network(network, config)
    build_seconds = time.perf_counter() - start
    if plan is None:
        raise ValueError(f"TensorRT-RTX cannot build {model_path}: {_last(log.errors)}")
    with atomic_path(out_dir / ENGINE_FILE) as temporary:
        temporary.write_bytes(memoryview(plan))
    report = EngineReport(
        backend="tensorrt-rtx",
        version=str(tensorrt_rtx.__version__),
        compute_capabilities=names,
        profile={
            name: {"min": list(min_shapes[name]), "opt": list(opt_shapes[name]), "max": list(max_shapes[name])}
            for name in opt_shapes
        },
        onnx=model_path.name,
        onnx_sha256=model_sha256(model_path),
        onnx_bytes=stored_bytes(model_path),
        engine=ENGINE_FILE,
        engine_sha256=sha256_file(out_dir / ENGINE_FILE),
        engine_bytes=(out_dir / ENGINE_FILE).stat().st_size,
        num_layers=network.num_layers,
        parse_seconds=round(parse_seconds, 3),
        build_seconds=round(build_seconds, 3),
        warnings=list(dict.fromkeys(log.warnings)),
        not_done=NOT_DONE,
    )
    write_atomically(out_dir / REPORT_FILE, json.dumps(asdict(report), indent=1) + "\n")
    return report


def _check_positions(structure: onnx.ModelProto, path: Path, largest: Shapes) -> None:
    """The builder does not see that longer rows would read on behind the table of positions."""
    if IDS_NAME not in largest or not any(entry.key == METADATA_KEY for entry in structure.metadata_props):
        return
    positions = GraphInfo.read(structure, name=str(path)).max_length
    if largest[IDS_NAME][-1] > positions:
        raise ValueError(
            f"max shape {'x'.join(map(str, largest[IDS_NAME]))}: length {largest[IDS_NAME][-1]} is above the "
            f"{positions} positions of {path}"
        )


@contextmanager
def _signals_held_back() -> Iterator[None]:
    """Deliver Ctrl-C and SIGTERM when native code returns: raised in its log callback, they would be swallowed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    earlier = {number: signal.signal(number, lambda n, _: held.append(n)) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
    if held:
        signal.raise_signal(held[0])


def _parse(network: Any, log: _Log, model_path: Path) -> float:
    start = time.perf_counter()
    parser = tensorrt_rtx.OnnxParser(network, log)
    if not parser.parse_from_file(str(model_path)) or parser.num_errors:
        if not parser.num_errors:
            raise ValueError(f"TensorRT-RTX cannot parse {model_path}: {_last(log.errors)}")
        error = parser.get_error(0)
        raise ValueError(
            f"TensorRT-RTX cannot parse {model_path}: node '{error.node_name()}', operator "
            f"{error.node_operator()}: {error.desc().strip()}"
        )
    return time.perf_counter() - start


def _configure(builder: Any, targets: Sequence[Any], smallest: Shapes, usual: Shapes, largest: Shapes) -> Any:
    config = builder.create_builder_config()
    config.num_compute_capabilities = len(targets)
    for place, target in enumerate(targets):
        config.set_compute_capability(target, place)
    shape_range = builder.create_optimization_profile()
    for name in usual:
        shape_range.set_shape(name, smallest[name], usual[name], largest[name])
    config.add_optimization_profile(shape_range)
    return config


def find_capability(major: int, minor: int) -> Any:
    """TensorRT-RTX's name of a target.

    Raises:
        ValueError: it does not build for that one; the message lists those it builds for.
    """
    known = {name: value for name, value in tensorrt_rtx.ComputeCapability.__members__.items() if name.startswith("SM")}
    if f"SM{major}{minor}" not in known:
        names = ", ".join(f"{name[2:-1]}.{name[-1]}" for name in known)
        raise ValueError(f"TensorRT-RTX does not build for compute capability {major}.{minor}; it builds for {names}")
    return known[f"SM{major}{minor}"]


def _last(errors: list[str]) -> str:
    return errors[-1].strip().splitlines()[0] if errors else "no reason given"
