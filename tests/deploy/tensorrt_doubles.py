"""Stand-ins for ``tensorrt`` 10.12, 10.16 and 11.4 with the attributes that their real bindings have, and no others.

The names were read from the bindings' own ``dir()``. Reading or setting anything else raises ``AttributeError``, as the real
extension types do; every name that is touched is written down.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

FLAGS_11 = [
    "DEBUG",
    "GPU_FALLBACK",
    "REFIT",
    "DISABLE_TIMING_CACHE",
    "EDITABLE_TIMING_CACHE",
    "TF32",
    "SPARSE_WEIGHTS",
    "SAFETY_SCOPE",
    "DIRECT_IO",
    "VERSION_COMPATIBLE",
    "EXCLUDE_LEAN_RUNTIME",
    "ERROR_ON_TIMING_CACHE_MISS",
    "DISABLE_COMPILATION_CACHE",
    "STRIP_PLAN",
    "REFIT_IDENTICAL",
    "WEIGHT_STREAMING",
    "REFIT_INDIVIDUAL",
    "STRICT_NANS",
    "MONITOR_MEMORY",
    "DISTRIBUTIVE_INDEPENDENCE",
]
FLAGS_ONLY_10 = [
    "FP16",
    "BF16",
    "INT8",
    "FP8",
    "INT4",
    "FP4",
    "OBEY_PRECISION_CONSTRAINTS",
    "PREFER_PRECISION_CONSTRAINTS",
    "REJECT_EMPTY_ALGORITHMS",
    "WEIGHTLESS",
]
CONFIG_11 = [
    "DLA_core",
    "add_optimization_profile",
    "avg_timing_iterations",
    "builder_optimization_level",
    "can_run_on_DLA",
    "clear_flag",
    "create_timing_cache",
    "default_device_type",
    "engine_capability",
    "flags",
    "get_device_type",
    "get_flag",
    "get_memory_pool_limit",
    "get_preview_feature",
    "get_tactic_sources",
    "get_timing_cache",
    "hardware_compatibility_level",
    "is_device_type_set",
    "l2_limit_for_tiling",
    "max_aux_streams",
    "max_num_tactics",
    "num_optimization_profiles",
    "plugins_to_serialize",
    "profile_stream",
    "profiling_verbosity",
    "progress_monitor",
    "reset",
    "reset_device_type",
    "runtime_platform",
    "set_device_type",
    "set_flag",
    "set_memory_pool_limit",
    "set_preview_feature",
    "set_tactic_sources",
    "set_timing_cache",
    "tiling_optimization_level",
    "build_route",
    "all_build_routes",
]
CONFIG_ONLY_10 = [
    "int8_calibrator",
    "set_calibration_profile",
    "get_calibration_profile",
    "set_quantization_flag",
    "clear_quantization_flag",
    "get_quantization_flag",
    "quantization_flags",
    "algorithm_selector",
]
CONFIG_ONLY_11 = ["build_route", "all_build_routes"]
BUILDER_11 = [
    "build_engine_with_config",
    "build_serialized_network",
    "build_serialized_network_to_stream",
    "create_builder_config",
    "create_network",
    "create_optimization_profile",
    "error_recorder",
    "get_plugin_registry",
    "gpu_allocator",
    "is_network_supported",
    "logger",
    "max_DLA_batch_size",
    "max_threads",
    "num_DLA_cores",
    "reset",
]
BUILDER_ONLY_10 = ["platform_has_fast_fp16", "platform_has_fast_int8", "platform_has_tf32"]
PARSER_11 = [
    "clear_errors",
    "clear_flag",
    "flags",
    "get_error",
    "get_flag",
    "get_layer_output_tensor",
    "get_subgraph_nodes",
    "get_used_vc_plugin_libraries",
    "is_subgraph_supported",
    "num_errors",
    "num_subgraphs",
    "parse",
    "parse_from_file",
    "set_flag",
    "supports_model_v2",
    "supports_operator",
]
PARSER_ONLY_10 = ["supports_model", "parse_with_weight_descriptors"]
LAYER_11 = [
    "get_input",
    "get_output",
    "get_output_type",
    "metadata",
    "name",
    "num_inputs",
    "num_outputs",
    "set_input",
    "type",
]
LAYER_ONLY_10 = [
    "precision",
    "precision_is_set",
    "reset_precision",
    "set_output_type",
    "output_type_is_set",
    "reset_output_type",
]
TENSOR_11 = [
    "allowed_formats",
    "dtype",
    "get_dimension_name",
    "is_network_input",
    "is_network_output",
    "location",
    "name",
    "shape",
]
TENSOR_ONLY_10 = ["dynamic_range", "set_dynamic_range", "reset_dynamic_range"]
_CLASSES_ONLY_10 = ["IInt8Calibrator", "IInt8EntropyCalibrator2", "IInt8MinMaxCalibrator", "QuantizationFlag"]
REMOVED = frozenset(
    (
        "EXPLICIT_BATCH",
        *_CLASSES_ONLY_10,
        *FLAGS_ONLY_10,
        *CONFIG_ONLY_10,
        *BUILDER_ONLY_10,
        *PARSER_ONLY_10,
        *LAYER_ONLY_10,
        *TENSOR_ONLY_10,
    )
)
"""What TensorRT 11 took away; it must not be touched on 10 either."""


class Guarded:
    """An object that has the allowed attributes and writes down each one that is touched."""

    def __init__(self, allowed: list[str], journal: list[tuple[str, Any]], **values: Any) -> None:
        object.__setattr__(self, "_state", (frozenset(allowed), journal, dict(values)))
        if odd := set(values) - set(allowed):
            raise AssertionError(f"the double itself offers {odd}, which the bindings do not have")

    def __getattr__(self, name: str) -> Any:
        allowed, journal, values = self._state
        if name not in allowed:
            raise AttributeError(name)
        journal.append((name, None))
        return values.get(name)

    def __setattr__(self, name: str, value: Any) -> None:
        allowed, journal, values = self._state
        if name not in allowed:
            raise AttributeError(name)
        journal.append((name, value))
        values[name] = value


PLAN_OF_GRAPH = b"ftrt-graph "
"""A plan of the stand-in is this and the path of the graph that was parsed."""


def make_double(version: str, *, failure: str | None = None, builds: bool = True) -> Any:
    """A module like ``tensorrt`` of that version, with ``journal`` (what was touched) and ``calls`` (with arguments).

    Args:
        version: ``10.12.0.36``, ``10.16.1.11`` or ``11.4.0.106``.
        failure: the parser refuses with this description.
        builds: whether the builder gives a plan: ``PLAN_OF_GRAPH`` and the path of the graph.
    """
    is_10 = version.startswith("10.")
    journal: list[tuple[str, Any]] = []
    calls: list[tuple[str, tuple[Any, ...]]] = []

    def both(new: list[str], old: list[str]) -> list[str]:
        return [*new, *old] if is_10 else new

    def called(name: str, answer: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            calls.append((name, (*arguments, *options.items())))
            return answer(*arguments, **options) if callable(answer) else answer

        return call

    def enum(names: list[str]) -> Guarded:
        return Guarded([*names, "__members__"], journal, **{name: number for number, name in enumerate(names)})

    def layer() -> Guarded:
        tensor = Guarded(both(TENSOR_11, TENSOR_ONLY_10), journal, dtype="DataType.HALF")
        return Guarded(both(LAYER_11, LAYER_ONLY_10), journal, get_output=lambda place: tensor)

    network = Guarded(
        [
            "num_layers",
            "get_layer",
            "num_inputs",
            "num_outputs",
            "get_input",
            "get_output",
            "name",
            "flags",
            "get_flag",
        ],
        journal,
        num_layers=2,
        get_layer=lambda place: layer(),
    )
    config = Guarded(
        [name for name in both(CONFIG_11, CONFIG_ONLY_10) if not (is_10 and name in CONFIG_ONLY_11)],
        journal,
        add_optimization_profile=called("add_optimization_profile", 0),
        set_flag=called("set_flag", None),
        set_memory_pool_limit=called("set_memory_pool_limit", None),
        create_timing_cache=called(
            "create_timing_cache", lambda stored: SimpleNamespace(serialize=lambda: stored + b"+timings")
        ),
        set_timing_cache=called("set_timing_cache", lambda cache, ignore_mismatch: True),
    )

    def built(_network: Any, setup: Any) -> bytes | None:
        monitor = setup.progress_monitor
        monitor.phase_start("Building engine", None, 2)
        going = [monitor.step_complete("Building engine", step) for step in range(2)]
        monitor.phase_finish("Building engine")
        parsed = [arguments[0] for name, arguments in calls if name == "parse_from_file"]
        return PLAN_OF_GRAPH + str(parsed[-1]).encode() if builds and all(going) else None

    shape_range = SimpleNamespace(set_shape=called("set_shape", None))
    builder = Guarded(
        both(BUILDER_11, BUILDER_ONLY_10),
        journal,
        create_network=called("create_network", network),
        create_builder_config=called("create_builder_config", config),
        create_optimization_profile=called("create_optimization_profile", shape_range),
        build_serialized_network=called("build_serialized_network", built),
    )
    error = SimpleNamespace(node_name=lambda: "encoder/Odd", node_operator=lambda: "Odd", desc=lambda: failure)
    parser = Guarded(
        both(PARSER_11, PARSER_ONLY_10),
        journal,
        num_errors=int(failure is not None),
        get_error=lambda place: error,
        parse_from_file=called("parse_from_file", failure is None),
    )
    # The place of STRONGLY_TYPED differs between versions.
    network_flags = ["EXPLICIT_BATCH", "STRONGLY_TYPED"] if is_10 else ["STRONGLY_TYPED"]
    base = {"__init__": lambda self: None, "__slots__": ("__dict__",)}
    names: dict[str, Any] = {
        "__version__": version,
        "ILogger": type(
            "ILogger", (), {**base, "INTERNAL_ERROR": 0, "ERROR": 1, "WARNING": 2, "INFO": 3, "VERBOSE": 4}
        ),
        "IProgressMonitor": type("IProgressMonitor", (), {**base, "step_complete": lambda self, name, step: True}),
        "ITimingCache": type("ITimingCache", (), {}),
        "NetworkDefinitionCreationFlag": enum(
            [*network_flags, "PREFER_JIT_PYTHON_PLUGINS", "PREFER_AOT_PYTHON_PLUGINS"]
        ),
        "BuilderFlag": enum(both(FLAGS_11, FLAGS_ONLY_10)),
        "HardwareCompatibilityLevel": enum(["NONE", "AMPERE_PLUS", "SAME_COMPUTE_CAPABILITY"]),
        "ProfilingVerbosity": enum(["LAYER_NAMES_ONLY", "DETAILED", "NONE"]),
        "MemoryPoolType": enum(["WORKSPACE", "DLA_MANAGED_SRAM", "DLA_LOCAL_DRAM", "DLA_GLOBAL_DRAM", "TACTIC_DRAM"]),
        "Builder": called("Builder", builder),
        "OnnxParser": called("OnnxParser", parser),
    }
    if is_10:
        names |= dict.fromkeys(_CLASSES_ONLY_10)
    module = Guarded(list(names), journal, **names)
    object.__setattr__(module, "journal", journal)
    object.__setattr__(module, "calls", calls)
    object.__setattr__(module, "config", config)
    return module
