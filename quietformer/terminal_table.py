"""A report's table as aligned text for the terminal."""

from __future__ import annotations

import textwrap

from quietformer.report.tables import Table

_GAP = "  "
_FIRST_COLUMN_WIDTH = 56
_CAPTION_WIDTH = 110


def terminal_table(table: Table) -> str:
    """Words to the left, numbers to the right, a long first cell on several lines, the caption below."""
    rows = [line for row in (table.header, *table.rows) for line in _lines(row)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(table.header))]
    lines = [_GAP.join(_aligned(row, widths, table.text_columns)).rstrip() for row in rows]
    lines.insert(1, _GAP.join("\N{BOX DRAWINGS LIGHT HORIZONTAL}" * width for width in widths))
    if table.caption:
        lines.append(textwrap.fill(table.caption, _CAPTION_WIDTH))
    return "\n".join(lines)


def _lines(row: tuple[str, ...]) -> list[tuple[str, ...]]:
    """A row as lines: the first cell is wrapped, the others stand beside its last line."""
    *above, last = textwrap.wrap(row[0], _FIRST_COLUMN_WIDTH, subsequent_indent="  ") or [""]
    rest = row[1:]
    return [*((part, *("" for _ in rest)) for part in above), (last, *rest)]


def _aligned(row: tuple[str, ...], widths: list[int], text_columns: int) -> list[str]:
    return [
        cell.ljust(width) if column < text_columns else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
