"""Latency as tables: of graphs by the host's clock, of engines by their device's."""

from __future__ import annotations

from deploy.measuring.bench_report import BenchReport, CandidateTiming, shape_text
from quietformer.report.number_text import TIMES, figure
from quietformer.report.story import NOTHING
from quietformer.report.tables import Table


def latency_table(latency: BenchReport) -> Table:
    """Latency in ms as trtexec names it, throughput, and the speed-up with its interval."""
    if latency.mode:
        return _device_table(latency)
    rows = []
    for timing in latency.timings:
        summary = timing.latency_ms
        figures = (summary.min, summary.median, summary.mean, summary.p90, summary.p95, summary.p99, summary.max)
        rows.append(
            (
                timing.name,
                timing.precision,
                *(figure(value) for value in figures),
                f"{timing.throughput_samples:,.1f}",
                _speed_up(timing),
            )
        )
    return Table(
        header=("Candidate", "Precision", "Min", "Median", "Mean", "p90", "p95", "p99", "Max", "Samples/s", "Speed-up"),
        rows=tuple(rows),
        text_columns=2,
        caption=(
            f"{shape_text(latency.batch_size, latency.length).capitalize()}; latency in ms, {latency.repeats} repeats of"
            f" {latency.seconds:g} s per candidate; {latency.method}. Speed-up of the median over {latency.baseline},"
            f" with its 95 % bootstrap interval.{_gpu_line(latency)}"
        ),
    )


def _device_table(latency: BenchReport) -> Table:
    """Times of engines by their device, in ms: medians, and the tail of the latency."""
    rows = []
    for timing in latency.timings:
        device = timing.device
        assert device is not None
        host = device.host_latency_ms
        rows.append(
            (
                timing.name,
                timing.precision,
                _products(timing),
                figure(timing.latency_ms.median),
                figure(timing.latency_ms.p99),
                *(figure(part.median) for part in (device.gpu_compute_ms, device.h2d_ms, device.d2h_ms)),
                figure(device.enqueue_ms.median),
                figure(host.median) if host else NOTHING,
                f"{timing.throughput_qps:,.1f}",
                _speed_up(timing),
            )
        )
    compared = "host time per query" if latency.mode.startswith("back") else "latency"
    return Table(
        header=(
            "Engine",
            "Precision",
            "Products ran in",
            "Latency",
            "p99",
            "GPU compute",
            "H2D",
            "D2H",
            "Enqueue",
            "Host",
            "Queries/s",
            "Speed-up",
        ),
        rows=tuple(rows),
        text_columns=3,
        caption=(
            f"{shape_text(latency.batch_size, latency.length).capitalize()}, {latency.mode}; medians in ms,"
            f" {latency.repeats} repeats of {latency.seconds:g} s per engine; {latency.method}. Speed-up of the {compared}"
            f" over {latency.baseline}, with its 95 % bootstrap interval.{_gpu_line(latency)}"
        ),
    )


def _gpu_line(latency: BenchReport) -> str:
    """Device, driver and clocks, after a space; empty where no GPU took part."""
    parts = [*latency.gpu.values(), *([latency.clocks.summary()] if latency.clocks else [])]
    return f" {', '.join(parts)}." if parts else ""


def _products(timing: CandidateTiming) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in (timing.products or {}).items()) or NOTHING


def _speed_up(timing: CandidateTiming) -> str:
    speed_up = timing.speed_up
    return f"{speed_up.ratio:.2f}{TIMES} ({speed_up.low:.2f} to {speed_up.high:.2f})" if speed_up else NOTHING
