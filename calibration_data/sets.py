"""The named calibration sets of ``sets.toml`` and the texts they are drawn from."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from calibration_data.docstrings import collect_sentences
from deploy.data.text_data import data_identity, read_texts

DOCSTRINGS = "docstrings"
SAMPLE = "sample"
SAMPLE_FILE = Path(__file__).with_name("sample.txt")
_SETS_FILE = Path(__file__).with_name("sets.toml")


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedSet:
    """One entry of ``sets.toml``."""

    name: str
    description: str
    source: str
    licence: str
    split: str
    seed: int
    """Seed of the draw."""
    count: int
    """Texts that are drawn."""
    length: int
    """Tokens to which each text is cut and padded."""
    how: str
    """How to get the data."""
    path: str | None = None
    """Below the data folder; None where no data folder is needed."""


def named_sets() -> dict[str, NamedSet]:
    """All named sets in the order of the file."""
    entries = tomllib.loads(_SETS_FILE.read_text(encoding="utf-8"))
    known = {entry.name for entry in fields(NamedSet)}
    for name, values in entries.items():
        assert set(values) <= known, f"set '{name}' has an unknown key"
    return {name: NamedSet(name=name, **values) for name, values in entries.items()}


def find_set(name: str) -> NamedSet:
    """One named set.

    Raises:
        ValueError: no set has this name.
    """
    sets = named_sets()
    if name not in sets:
        raise ValueError(f"unknown calibration set '{name}'; known are {', '.join(sets)}")
    return sets[name]


def set_texts(name: str, *, data_dir: Path | None = None) -> tuple[list[str], dict[str, Any]]:
    """All texts that a named set is drawn from, and their identity for a calibration cache.

    Args:
        name: of the set.
        data_dir: folder that holds the set's ``path``; for set ``text`` the file or folder itself.

    Raises:
        FileNotFoundError: the data is not there; the message says how to get it.
        ValueError: an unknown set, no data folder where one is needed, or one where it has no effect.
    """
    entry = find_set(name)
    if entry.path is None:
        if data_dir is not None:
            raise ValueError(f"a data folder has no effect on set '{name}'")
        return docstring_texts() if name == DOCSTRINGS else _file_texts(SAMPLE_FILE)
    if data_dir is None:
        raise ValueError(f"set '{name}' needs a data folder. {entry.how}")
    path = data_dir / entry.path
    if not path.exists():
        raise FileNotFoundError(f"no data at {path}. {entry.how}")
    return _file_texts(path)


def docstring_texts(*, limit: int | None = None) -> tuple[list[str], dict[str, Any]]:
    """Sentences of the installed documentation strings, and their identity: a hash of them and the packages they are from.

    Args:
        limit: stop once so many are found.
    """
    found = collect_sentences(limit=limit)
    return found.sentences, {
        "kind": DOCSTRINGS,
        "sha256": found.sha256,
        "count": len(found.sentences),
        "packages": found.packages,
    }


def _file_texts(path: Path) -> tuple[list[str], dict[str, Any]]:
    return read_texts(path), data_identity(path)
