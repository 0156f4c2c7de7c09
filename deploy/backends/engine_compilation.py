"""One run of a parser and builder: a graph, a library, settings and targets in, a plan out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.backends.engine_contents import layer_types
from deploy.backends.engine_settings import EngineSettings
from deploy.backends.held_signals import held_signals
from deploy.backends.parser_explanation import build_explanation, parser_explanation, refused_targets
from deploy.backends.tensorrt_dialect import Dialect, Messages, make_monitor, open_log
from deploy.files import atomic_path, sha256_file
from deploy.graphs.shapes import Shapes

Progress = Callable[[str], None]
Steps = Callable[[int, int, str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Compiled:
    """A plan, and how it came about."""

    plan: Any
    targets: tuple[str, ...]
    layers: dict[str, int]
    parse_seconds: float
    build_seconds: float
    timing_cache: dict[str, Any] | None
    warnings: list[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Compilation:
    """One graph, one library, one set of settings."""

    dialect: Dialect
    model_path: Path
    settings: EngineSettings
    profile: tuple[Shapes, Shapes, Shapes] | None
    say: Progress
    steps: Steps

    def for_most(self, targets: tuple[str, ...], *, may_drop: bool) -> tuple[Compiled, dict[str, str]]:
        """Build; where ``may_drop``, without the targets that the builder names as those it refuses, with its reasons."""
        left_out: dict[str, str] = {}
        while True:
            logger, messages = open_log(self.dialect)
            built = self._compile(targets, logger, messages)
            if built is not None:
                return built, left_out
            said = messages.last_error()
            refused = refused_targets(said, targets) if may_drop else ()
            if not refused or len(refused) == len(targets):
                raise ValueError(build_explanation(self.dialect, self.model_path, said))
            left_out.update(dict.fromkeys(refused, said))
            self.say(f"building without SM {', '.join(refused)}: {said}")
            targets = tuple(target for target in targets if target not in refused)

    def _compile(self, targets: tuple[str, ...], logger: Any, messages: Messages) -> Compiled | None:
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
        return Compiled(
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
