"""Metrics in Prometheus' text format, under Triton's names."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterable

from deploy.serving.served_model import ServedModel

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_Reader = Callable[[ServedModel], float]
_COUNTERS: tuple[tuple[str, str, _Reader], ...] = (
    (
        "nv_inference_request_success",
        "Number of successful inference requests",
        lambda model: model.statistics.success.count,
    ),
    ("nv_inference_count", "Number of inferences performed", lambda model: model.statistics.inference_count),
    ("nv_inference_exec_count", "Number of model executions performed", lambda model: model.statistics.execution_count),
    (
        "nv_inference_request_duration_us",
        "Cumulative inference request duration in microseconds",
        lambda model: model.statistics.success.ns // 1000,
    ),
    (
        "nv_inference_queue_duration_us",
        "Cumulative inference queuing duration in microseconds",
        lambda model: model.statistics.queue.ns // 1000,
    ),
    (
        "nv_inference_compute_input_duration_us",
        "Cumulative compute input duration in microseconds",
        lambda model: model.statistics.compute_input.ns // 1000,
    ),
    (
        "nv_inference_compute_infer_duration_us",
        "Cumulative compute inference duration in microseconds",
        lambda model: model.statistics.compute_infer.ns // 1000,
    ),
    (
        "nv_inference_compute_output_duration_us",
        "Cumulative inference compute output duration in microseconds",
        lambda model: model.statistics.compute_output.ns // 1000,
    ),
)


def prometheus_text(models: Iterable[ServedModel]) -> str:
    """All metrics of the server."""
    served = list(models)
    lines: list[str] = []
    for name, text, read in _COUNTERS:
        lines += [f"# HELP {name} {text}", f"# TYPE {name} counter"]
        lines += [f"{name}{{{_labels(model)}}} {read(model)}" for model in served]
    name = "nv_inference_request_failure"
    lines += [f"# HELP {name} Number of failed inference requests", f"# TYPE {name} counter"]
    lines += [
        f'{name}{{{_labels(model)},reason="{reason}"}} {count}'
        for model in served
        for reason, count in model.statistics.failures.items()
    ]
    name = "nv_inference_pending_request_count"
    lines += [f"# HELP {name} Instantaneous number of pending requests", f"# TYPE {name} gauge"]
    lines += [f"{name}{{{_labels(model)}}} {model.statistics.pending}" for model in served]
    usage = resource.getrusage(resource.RUSAGE_SELF)
    lines += [
        "# HELP process_cpu_seconds_total Total user and system CPU time spent in seconds",
        "# TYPE process_cpu_seconds_total counter",
        f"process_cpu_seconds_total {usage.ru_utime + usage.ru_stime:.3f}",
    ]
    return "\n".join(lines) + "\n"


def _labels(model: ServedModel) -> str:
    return f'model="{model.name}",version="{model.version}"'
