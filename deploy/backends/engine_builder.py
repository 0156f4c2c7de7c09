"""Build an engine from an ONNX graph with TensorRT 10 or 11, or with TensorRT-RTX.

The network is strongly typed and integers are explicit Q/DQ, which is the one form that all three take. TensorRT builds
for the GPU it runs on; TensorRT-RTX builds for named compute capabilities and needs no GPU, which makes it the real check
of a graph on a CPU machine. No ``Runtime`` object is ever made: without a device it crashes the process.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx

from deploy.backends.artifact import input_shapes
from deploy.backends.engine_contents import graph_contents, layer_types
from deploy.backends.engine_preflight import check_graph, check_shape_range
from deploy.backends.engine_report import ENGINE_FILE, FORMAT, REPORT_FILE, EngineReport
from deploy.backends.engine_settings import EngineSettings
from deploy.backends.engine_targets import building_device, engine_targets
from deploy.backends.held_signals import held_signals
from deploy.backends.parser_explanation import build_explanation, parser_explanation, refused_targets
from deploy.backends.tensorrt_dialect import Dialect, Messages, load_dialect, make_monitor, open_log
from deploy.files import atomic_path, refuse_existing, sha256_file, write_atomically
from deploy.graph_structure import read_structure, stored_bytes
from deploy.model_hash import model_sha256
from deploy.shapes import Shapes

NOT_RUN = "built, not run: speed and accuracy on the device need an NVIDIA GPU"

Progress = Callable[[str], None]
Steps = Callable[[int, int, str], None]


def build_engine(
    model_path: Path,
    out_dir: Path,
    *,
    backend: str = "tensorrt-rtx",
    compute_capabilities: Sequence[str] | None = None,
    min_shapes: Shapes | None = None,
    opt_shapes: Shapes | None = None,
    max_shapes: Shapes | None = None,
    settings: EngineSettings | None = None,
    force: bool = False,
    progress: Progress | None = None,
    steps: Steps | None = None,
) -> EngineReport:
    """Parse a graph and build an engine; write ``model.engine`` and ``engine.json``.

    Args:
        model_path: ONNX graph; integers must be signed with zero point 0 (profile ``tensorrt``).
        out_dir: folder, made when missing.
        backend: ``tensorrt`` or ``tensorrt-rtx``.
        compute_capabilities: GPUs to build for, such as ``8.9``; None takes those of ``engine_targets.USUAL_TARGETS`` that the builder
            accepts for this graph. TensorRT builds for the GPU at hand and takes none.
        min_shapes: least sizes of each input; left out, with the other two, for a graph of fixed sizes.
        opt_shapes: sizes to be fastest at.
        max_shapes: greatest sizes.
        settings: see :class:`EngineSettings`.
        force: replace an earlier engine.
        progress: told what is happening, one line at a time.
        steps: told steps done, steps in all and the phase, where the builder counts them.

    Raises:
        FileExistsError: an engine is there and ``force`` is not set.
        FileNotFoundError: no such graph.
        ImportError: the library is missing.
        ValueError: not a graph, one that TensorRT does not take, shapes that do not fit it, an unknown target, no GPU
            where one is needed, or the parser or builder refuses (with node, operator, reason and what to do).
    """
    settings = settings or EngineSettings()
    for name in (ENGINE_FILE, REPORT_FILE):
        refuse_existing(out_dir / name, force=force)
    structure = read_structure(model_path)
    has_range = check_shape_range(
        structure,
        input_shapes(structure),
        smallest=min_shapes,
        usual=opt_shapes,
        largest=max_shapes,
        name=str(model_path),
    )
    warnings = check_graph(structure, name=str(model_path))
    dialect = load_dialect(backend)
    settings.check(dialect)
    targets = engine_targets(dialect, compute_capabilities)
    device = None if dialect.takes_targets else building_device(dialect)
    work = _Build(
        dialect=dialect,
        model_path=model_path,
        settings=settings,
        profile=(min_shapes, opt_shapes, max_shapes) if has_range else None,  # type: ignore[arg-type]  # checked above
        say=progress or (lambda line: None),
        steps=steps or (lambda done, total, phase: None),
    )
    built, left_out = work.build_for_most(targets, may_drop=compute_capabilities is None)
    with atomic_path(out_dir / ENGINE_FILE) as temporary:
        temporary.write_bytes(memoryview(built.plan))
    contents = graph_contents(structure)
    report = EngineReport(
        format=FORMAT,
        backend=backend,
        version=dialect.version,
        tools={"onnx": onnx.__version__, "python": platform.python_version()},
        compute_capabilities=list(built.targets) if device is None else [device.compute_capability],
        left_out=left_out,
        device=device.name if device is not None else None,
        driver=device.driver if device is not None else None,
        settings={key: value for key, value in asdict(settings).items() if key != "timing_cache"},
        timing_cache=built.timing_cache,
        profile=_profile_facts(min_shapes, opt_shapes, max_shapes) if has_range else {},
        onnx=model_path.name,
        onnx_sha256=model_sha256(model_path),
        onnx_bytes=stored_bytes(model_path),
        precision=contents.precision,
        weights=contents.weights,
        int8_share=round(contents.int8_share, 4),
        products=contents.products,
        layers=built.layers,
        engine=ENGINE_FILE,
        engine_sha256=sha256_file(out_dir / ENGINE_FILE),
        engine_bytes=(out_dir / ENGINE_FILE).stat().st_size,
        num_layers=sum(built.layers.values()),
        parse_seconds=round(built.parse_seconds, 3),
        build_seconds=round(built.build_seconds, 3),
        warnings=[*warnings, *dict.fromkeys(built.warnings)],
        not_done=NOT_RUN,
    )
    write_atomically(out_dir / REPORT_FILE, report.to_json())
    return report


@dataclass(frozen=True, kw_only=True, slots=True)
class _Built:
    plan: Any
    targets: tuple[str, ...]
    layers: dict[str, int]
    parse_seconds: float
    build_seconds: float
    timing_cache: dict[str, Any] | None
    warnings: list[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Build:
    """One graph, one library, one set of settings."""

    dialect: Dialect
    model_path: Path
    settings: EngineSettings
    profile: tuple[Shapes, Shapes, Shapes] | None
    say: Progress
    steps: Steps

    def build_for_most(self, targets: tuple[str, ...], *, may_drop: bool) -> tuple[_Built, dict[str, str]]:
        """Build; where ``may_drop``, without the targets that the builder names as those it refuses, with its reasons."""
        left_out: dict[str, str] = {}
        while True:
            logger, messages = open_log(self.dialect)
            built = self._build(targets, logger, messages)
            if built is not None:
                return built, left_out
            said = messages.last_error()
            refused = refused_targets(said, targets) if may_drop else ()
            if not refused or len(refused) == len(targets):
                raise ValueError(build_explanation(self.dialect, self.model_path, said))
            left_out.update(dict.fromkeys(refused, said))
            self.say(f"building without SM {', '.join(refused)}: {said}")
            targets = tuple(target for target in targets if target not in refused)

    def _build(self, targets: tuple[str, ...], logger: Any, messages: Messages) -> _Built | None:
        """Parse and build; None where the builder refuses."""
        builder = self.dialect.module.Builder(logger)
        network = builder.create_network(self.dialect.network_flags())
        self.say(f"parsing {self.model_path}")
        start = time.perf_counter()
        with held_signals():
            parser = self.dialect.module.OnnxParser(network, logger)
            parsed = parser.parse_from_file(str(self.model_path)) and not parser.num_errors
        if not parsed:
            raise ValueError(parser_explanation(parser, self.dialect, self.model_path, messages.last_error()))
        parse_seconds = time.perf_counter() - start
        config = self._configure(builder, targets)
        cache, existed = self._load_timing_cache(config)
        layers = layer_types(network)
        self.say(f"building for SM {', '.join(targets)}" if targets else "building")
        start = time.perf_counter()
        with held_signals() as waiting:
            config.progress_monitor = make_monitor(
                self.dialect, lambda phase, done, total: self.steps(done, total, phase), goes_on=lambda: not waiting
            )
            plan = builder.build_serialized_network(network, config)
        if plan is None:
            return None
        return _Built(
            plan=plan,
            targets=targets,
            layers=layers,
            parse_seconds=parse_seconds,
            build_seconds=time.perf_counter() - start,
            timing_cache=self._store_timing_cache(cache, existed=existed),
            warnings=list(messages.warnings),
        )

    def _configure(self, builder: Any, targets: tuple[str, ...]) -> Any:
        config = builder.create_builder_config()
        if targets:
            config.num_compute_capabilities = len(targets)
            for place, target in enumerate(targets):
                config.set_compute_capability(self.dialect.target(target), place)
        if self.profile is not None:
            smallest, usual, largest = self.profile
            shape_range = builder.create_optimization_profile()
            for name in usual:
                shape_range.set_shape(name, smallest[name], usual[name], largest[name])
            config.add_optimization_profile(shape_range)
        self.settings.apply(config, self.dialect)
        return config

    def _load_timing_cache(self, config: Any) -> tuple[Any, bool]:
        path = self.settings.timing_cache
        if path is None:
            return None, False
        existed = path.is_file()
        cache = config.create_timing_cache(path.read_bytes() if existed else b"")
        if not config.set_timing_cache(cache, ignore_mismatch=False):
            raise ValueError(
                f"timing cache {path} was made with another version or on another device; name another file"
            )
        return cache, existed

    def _store_timing_cache(self, cache: Any, *, existed: bool) -> dict[str, Any] | None:
        path = self.settings.timing_cache
        if path is None:
            return None
        with atomic_path(path) as temporary:
            temporary.write_bytes(memoryview(cache.serialize()))
        return {"file": path.name, "sha256": sha256_file(path), "existed": existed}


def _profile_facts(
    smallest: Shapes | None, usual: Shapes | None, largest: Shapes | None
) -> dict[str, dict[str, list[int]]]:
    assert smallest is not None
    assert usual is not None
    assert largest is not None
    return {name: {"min": list(smallest[name]), "opt": list(usual[name]), "max": list(largest[name])} for name in usual}
