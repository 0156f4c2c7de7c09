"""A report's table as aligned text for the terminal."""

from __future__ import annotations

import textwrap

from quietformer.report.tables import Table

_GAP = "  "
_CAPTION_WIDTH = 110


def terminal_table(table: Table) -> str:
    """Words to the left, numbers to the right, the caption below."""
    cells = [table.header, *table.rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(table.header))]
    lines = [_GAP.join(_aligned(row, widths, table.text_columns)).rstrip() for row in cells]
    lines.insert(1, _GAP.join("─" * width for width in widths))
    if table.caption:
        lines.append(textwrap.fill(table.caption, _CAPTION_WIDTH))
    return "\n".join(lines)


def _aligned(row: tuple[str, ...], widths: list[int], text_columns: int) -> list[str]:
    return [
        cell.ljust(width) if column < text_columns else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
