"""What the command line says about sites: lists in files, patterns and switches, as one choice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from deploy.graphs.site_choice import SiteChoice, Wish


def site_choice(
    *, exclude: Sequence[str], include: Sequence[str], bmms: Wish, residual_adds: Wish, gate_path: Wish
) -> SiteChoice:
    """The choice that options ask for; an entry that names a file is the list in it, any other a pattern.

    Raises:
        ValueError: a list that is none, or a setting that no choice has.
    """
    return SiteChoice(
        exclude=_patterns(exclude),
        include=_patterns(include),
        bmms=bmms,
        residual_adds=residual_adds,
        gate_path=gate_path,
    )


def read_patterns(path: Path) -> list[str]:
    """Lines of a list without blanks and comments (``#`` and what follows).

    Raises:
        FileNotFoundError: no such file.
        ValueError: not a text file, or nothing in it.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no list of patterns at {path}")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a text file: byte {error.start} is not UTF-8") from error
    patterns = [pattern for line in lines if (pattern := line.partition("#")[0].strip())]
    if not patterns:
        raise ValueError(f"{path} names nothing")
    return patterns


def listed_files(entries: Sequence[str]) -> list[Path]:
    """The entries that are files."""
    return [Path(entry) for entry in entries if Path(entry).is_file()]


def _patterns(entries: Sequence[str]) -> tuple[str, ...]:
    found: list[str] = []
    for entry in entries:
        found += read_patterns(Path(entry)) if Path(entry).is_file() else [entry]
    return tuple(found)
