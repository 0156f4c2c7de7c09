from __future__ import annotations

from quietformer.report.tables import Table
from quietformer.terminal_table import terminal_table


def test_words_stand_left_and_numbers_right() -> None:
    table = Table(header=("Name", "Score"), rows=(("a", "1.5"), ("longer", "10.25")))
    assert terminal_table(table).splitlines() == [
        "Name    Score",
        "──────  ─────",
        "a         1.5",
        "longer  10.25",
    ]


def test_a_long_first_cell_goes_over_several_lines() -> None:
    text = "a sentence that is much longer than a column of a terminal should ever be"
    lines = terminal_table(Table(header=("", "Score"), rows=((text, "1"),))).splitlines()
    assert len(lines) == 4
    assert max(map(len, lines)) <= 56 + 2 + 5
    assert lines[-1].endswith("1")


def test_the_caption_stands_below() -> None:
    table = Table(header=("A",), rows=(("b",),), caption="What it means.")
    assert terminal_table(table).splitlines()[-1] == "What it means."
