"""The table of ``rivals.py`` from its record: a line per row and runtime, linear layers alone first, then all sites."""

from __future__ import annotations

from typing import Any

from quietformer.report.tables import Table
from quietformer.terminal_table import terminal_table


def rival_table(record: dict[str, Any]) -> str:
    """Lines of what was judged or timed so far. Latency in ms, and in brackets how many times faster than ONNX Runtime's float graph."""
    rows: dict[str, dict[str, Any]] = record["rows"]
    judged = [one for row in rows.values() for one in row.get("judged", {}).values() if "scores" in one]
    metrics = list(dict.fromkeys(metric for one in judged for metric in one["scores"]))
    shapes = list(
        dict.fromkeys(shape for row in rows.values() for one in row.get("timed", {}).values() for shape in one)
    )
    head = [
        "row",
        "runtime",
        *metrics,
        *(f"ms {shape}" for shape in shapes),
        "tensors",
        "products",
        "s",
        "peak MB",
        "MB",
    ]
    lines = [
        line
        for name, row in sorted(rows.items(), key=lambda item: bool(item[1].get("all_sites")))
        for line in _lines(name, row, metrics, shapes, width=len(head))
    ]
    return terminal_table(Table(header=tuple(head), rows=tuple(map(tuple, lines)), text_columns=2))


def _lines(name: str, row: dict[str, Any], metrics: list[str], shapes: list[str], *, width: int) -> list[list[str]]:
    if "skipped" in row:
        return [[name, row["skipped"], *([""] * (width - 2))]]
    products = f"{row['integer_products']}/{row['products']}"
    facts = [str(row["tensors"]), products, *(str(row.get(key, "")) for key in ("seconds", "peak_mb", "mb"))]
    lines = []
    for runner in row.get("judged", {}) | row.get("timed", {}):
        result = row.get("judged", {}).get(runner, {})
        if "skipped" in result:
            lines.append([name, f"{runner}: {result['skipped']}", *([""] * (width - 2))])
            continue
        known = result.get("scores", {})
        scores = [f"{known[metric]:.4f}" if metric in known else "" for metric in metrics]
        timed = row.get("timed", {}).get(runner, {})
        times = [
            f"{timed[shape]['ms']:.1f} ({timed[shape]['times']:.2f})" if "ms" in timed.get(shape, {}) else ""
            for shape in shapes
        ]
        lines.append([name, runner, *scores, *times, *(facts if not lines else [""] * len(facts))])
    return lines
