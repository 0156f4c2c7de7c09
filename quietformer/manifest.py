"""``manifest.json`` of a run directory: what each artifact was made from, with which settings and tools.

One record per finished stage: settings, sha256 of every input (``made_from``) and artifact, tool versions, seconds. The
file is replaced atomically when a stage has finished, so a killed run has records of whole stages only.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from deploy.files import sha256_file, write_atomically

MANIFEST_FILE = "manifest.json"
SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class StageRecord:
    """How one stage's artifacts came to be."""

    settings: dict[str, Any]
    """What the recipe asked of the stage, as plain values."""
    made_from: dict[str, str]
    """sha256 of every input, by its path in the run directory or its name."""
    artifacts: dict[str, str]
    """sha256 of every file written, by its path in the run directory."""
    tools: dict[str, str]
    """Versions of the packages that did the work."""
    seconds: float
    """Wall time of the stage."""


@dataclass(kw_only=True, slots=True)
class Manifest:
    """The records of a run directory."""

    folder: Path
    stages: dict[str, StageRecord] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read the manifest of a run directory; an absent one is empty.

        Raises:
            ValueError: the file is damaged or of another version.
        """
        path = folder / MANIFEST_FILE
        if not path.is_file():
            return cls(folder=folder)
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            version = document["schema_version"]
            known = {entry.name for entry in fields(StageRecord)}
            stages = {
                name: StageRecord(**{key: value for key, value in record.items() if key in known})
                for name, record in document["stages"].items()
            }
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{path} is not a manifest: {error}; start with another --out folder") from error
        if version != SCHEMA_VERSION:
            raise ValueError(f"{path} has schema version {version}; this program reads {SCHEMA_VERSION}")
        return cls(folder=folder, stages=stages)

    def record(self, stage: str, record: StageRecord) -> None:
        """Add or replace a stage's record and write the file."""
        self.stages[stage] = record
        document = {
            "schema_version": SCHEMA_VERSION,
            "stages": {name: asdict(entry) for name, entry in self.stages.items()},
        }
        write_atomically(self.folder / MANIFEST_FILE, json.dumps(document, indent=1) + "\n")

    def altered_artifacts(self, stage: str) -> list[str]:
        """Artifacts of a stage that are there but no longer hold what the stage wrote."""
        artifacts = self.stages[stage].artifacts
        return [name for name in artifacts if self._is_file(name) and _sha256(self.folder / name) != artifacts[name]]

    def missing_artifacts(self, stage: str) -> list[str]:
        """Artifacts of a stage that are gone."""
        return [name for name in self.stages[stage].artifacts if not self._is_file(name)]

    def _is_file(self, name: str) -> bool:
        return (self.folder / name).is_file()


def hash_paths(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """sha256 of files, and of every file below folders, by path relative to ``folder``.

    A name with ``*`` stands for the files that match it, possibly none.

    Raises:
        FileNotFoundError: a path without ``*`` is absent.
    """
    hashes: dict[str, str] = {}
    for name in names:
        path = folder / name
        if "*" not in name and not path.exists():
            raise FileNotFoundError(f"no file or folder at {path}")
        found = folder.glob(name) if "*" in name else path.rglob("*") if path.is_dir() else [path]
        files = sorted(file for file in found if file.is_file())
        hashes |= {file.relative_to(folder).as_posix(): _sha256(file) for file in files}
    return hashes


def hash_source(path: Path) -> str:
    """One sha256 for a file, or for a folder's relative file names and contents.

    Raises:
        FileNotFoundError: a path is absent.
    """
    if path.is_file():
        return _sha256(path)
    text = json.dumps(hash_paths(path, ["."]), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _sha256(path: Path) -> str:
    """Of one file; a file that several stages read is read once."""
    status = path.stat()
    return _sha256_of_state(path, (status.st_ino, status.st_size, status.st_mtime_ns))


@functools.cache
def _sha256_of_state(path: Path, _state: tuple[int, int, int]) -> str:
    return sha256_file(path)


def tool_versions(packages: Iterable[str]) -> dict[str, str]:
    """Versions of the installed ones among ``packages``."""
    versions: dict[str, str] = {}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def describe_change(old: Mapping[str, Any], new: Mapping[str, Any], *, prefix: str = "") -> str | None:
    """The first difference between two sets of plain values in words, None when there is none."""
    for key in [*new, *(key for key in old if key not in new)]:
        name = f"{prefix}{key}"
        if key not in old:
            return f"{name} is new"
        if key not in new:
            return f"{name} is gone"
        before, after = old[key], new[key]
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            if change := describe_change(before, after, prefix=f"{name}."):
                return change
        elif before != after:
            return f"{name} was {_short(before)} and is {_short(after)}"
    return None


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:12]}…{text[-4:]}"
