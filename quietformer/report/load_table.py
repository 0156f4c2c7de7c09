"""A load sweep as a table."""

from __future__ import annotations

from collections.abc import Mapping

from deploy.load.loops import LoadPoint
from deploy.load.sweep import Sweep
from quietformer.report.tables import Table


def load_table(sweep: Sweep, bare: Mapping[int, float]) -> Table:
    """One row for each strength of load; errors by kind below.

    Args:
        sweep: what was measured.
        bare: rows a second of the bare session by requests in a batch; empty leaves the column out.
    """
    header = ["load", "requests/s", "rows/s", "p50 ms", "p90 ms", "p99 ms", "errors"]
    if bare:
        header.append("of bare")
    rows = [tuple(_cells(point) + ([_share(point, bare)] if bare else [])) for point in sweep.points]
    notes = [
        f"{sweep.model.name}: {sweep.requests.what}; {sweep.requests.rows} {'row' if sweep.requests.rows == 1 else 'rows'} a request."
    ]
    kinds: dict[str, int] = {}
    for point in sweep.points:
        for kind, count in point.errors.items():
            kinds[kind] = kinds.get(kind, 0) + count
    notes += [f"{count} times: {kind}." for kind, count in sorted(kinds.items(), key=lambda pair: -pair[1])]
    if bare:
        sessions = ", ".join(f"{batch}: {rate:.1f}" for batch, rate in bare.items())
        notes.append(f"Rows/s of the bare session by requests in a batch, client and server idle: {sessions}.")
    return Table(header=tuple(header), rows=tuple(rows), caption=" ".join(notes))


def _cells(point: LoadPoint) -> list[str]:
    clients = f"{point.clients} client{'' if point.clients == 1 else 's'}"
    what = clients if point.rate is None else f"{point.rate:g} requests/s"
    waits = [point.latency.median, point.latency.p90, point.latency.p99] if point.latency else []
    return [
        what,
        f"{point.requests_per_second:.1f}",
        f"{point.rows_per_second:.1f}",
        *([f"{wait:.1f}" for wait in waits] or ["", "", ""]),
        str(sum(point.errors.values())),
    ]


def _share(point: LoadPoint, bare: Mapping[int, float]) -> str:
    """Throughput beside the session whose batches hold as many requests as there are clients, or its largest."""
    if point.clients is None:
        return ""
    batch = min(point.clients, max(bare))
    return f"{point.rows_per_second / bare[batch]:.2f}" if batch in bare else ""
