"""``quietformer.json`` at the top of a repository, which Triton passes over: what it was made from, and what is in it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from deploy.files import sha256_file

MANIFEST_FILE = "quietformer.json"
FORMAT = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class RepositoryManifest:
    """The content of ``quietformer.json``."""

    format: int = FORMAT
    model: str
    runtime: str
    graph_sha256: str
    longest: int | None
    """Tokens of a row at most; None where the graph says nothing."""
    engines: list[dict[str, Any]] = field(default_factory=list)
    """Of each plan: file, compute capabilities, version of TensorRT, profile."""
    files: dict[str, str]
    """sha256 of every model file, by its path in the repository; configurations may be edited and are not in here."""

    def to_json(self) -> str:
        """The text of ``quietformer.json``."""
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"

    @classmethod
    def load(cls, repository: Path) -> Self | None:
        """Of a repository; None where quietformer did not write it.

        Raises:
            ValueError: damaged, or of another format.
        """
        path = repository / MANIFEST_FILE
        if not path.is_file():
            return None
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} is not JSON: {error}") from error
        if (
            not isinstance(values, dict)
            or set(values) != {entry.name for entry in fields(cls)}
            or values["format"] != FORMAT
        ):
            raise ValueError(f"{path} is damaged or of another version of quietformer; write the repository again")
        return cls(**values)


def hash_files(folder: Path) -> dict[str, str]:
    """sha256 of every file below ``folder`` but configurations, by its path there."""
    return {
        str(file.relative_to(folder)): sha256_file(file)
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.suffix != ".pbtxt"
    }
