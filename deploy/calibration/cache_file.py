"""The file of a calibration cache: JSON with one tensor a line.

The same content writes the same bytes. A digest over the content and the list of expected tensors tell a damaged or edited
file from a whole one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

FORMAT = "quietformer calibration"
SCHEMA_VERSION = 1
_OF_THE_FILE = ("format", "schema_version", "tensor_names")


def cache_text(fields: Mapping[str, Any], tensors: Mapping[str, Any]) -> str:
    """Content of the file.

    Args:
        fields: plain values by name.
        tensors: plain values of every tensor, in order.
    """
    content = {**fields, "format": FORMAT, "schema_version": SCHEMA_VERSION, "tensor_names": list(tensors)}
    lines = [f" {json.dumps(key)}: {compact(content[key])}" for key in sorted(content)]
    lines.append(f' "digest": "{_digest(content | {"tensors": dict(tensors)})}"')
    rows = ",\n".join(f"  {json.dumps(name)}: {compact(values)}" for name, values in tensors.items())
    return "{\n" + ",\n".join(lines) + ',\n "tensors": {\n' + rows + "\n }\n}\n"


def read_cache(
    path: Path, *, required: Collection[str], optional: Collection[str] = ()
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields and tensors of a file that is whole.

    Args:
        path: the file.
        required: fields that it must have.
        optional: fields that it may have; there are no others.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not a calibration cache, another schema version, or a damaged one.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no calibration cache at {path}")
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON, or ends early: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{path} is not a calibration cache; expected a JSON file with format '{FORMAT}'")
    if (version := content.get("schema_version")) != SCHEMA_VERSION:
        raise ValueError(f"{path} has schema version {version}; this version reads {SCHEMA_VERSION}: calibrate again")
    known = {*required, *_OF_THE_FILE, "tensors", "digest"}
    if differing := sorted(known ^ (set(content) - set(optional))):
        raise ValueError(
            f"{path} is damaged: field '{differing[0]}' is {'missing' if differing[0] in known else 'unknown'}"
        )
    tensors, names = content["tensors"], content["tensor_names"]
    if not isinstance(tensors, dict) or not isinstance(names, list):
        raise ValueError(f"{path} is damaged: its tensors are no table")  # noqa: TRY004 - a fault of the file
    if lost := sorted(set(map(str, names)) ^ set(tensors)):
        raise ValueError(f"{path} is damaged: the entry of tensor '{lost[0]}' was deleted or added")
    digest = content.pop("digest")
    try:
        is_whole = digest == _digest(content)
        rows = {name: tensors[name] for name in names}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {type(error).__name__}: {error}; calibrate again") from error
    if not is_whole:
        raise ValueError(f"{path} is damaged: its content does not match its digest; calibrate again")
    return {name: value for name, value in content.items() if name not in {*_OF_THE_FILE, "tensors"}}, rows


def compact(value: Any) -> str:
    """Plain values on one line, the same ones always the same."""
    return json.dumps(value, sort_keys=True, allow_nan=False, ensure_ascii=False)


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(compact(content).encode()).hexdigest()
