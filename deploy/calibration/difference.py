"""What differs between two plain values, in a few words: the innermost field, hashes by their beginning, files by their names."""

from __future__ import annotations

import re
from typing import Any

from deploy.calibration.cache_file import compact

_HASH = re.compile(r"[0-9a-f]{64}")
_HASH_SHOWN = 12
_FILES_SHOWN = 2
_LONGEST = 80


def difference(name: str, own: Any, other: Any) -> str:
    """``preprocessing.max_length is 128 there and 16 here``; of several fields that differ the first.

    Args:
        name: of the field.
        own: its value there.
        other: its value here, another one.
    """
    if isinstance(own, dict) and isinstance(other, dict):
        key = min(key for key in own.keys() | other.keys() if own.get(key) != other.get(key))
        return difference(f"{name}.{key}", own.get(key), other.get(key))
    return f"{name} is {_short(own)} there and {_short(other)} here"


def _short(value: Any) -> str:
    if value is None:
        return "absent"
    if isinstance(value, str) and _HASH.fullmatch(value):
        return f"{value[:_HASH_SHOWN]}\N{HORIZONTAL ELLIPSIS}"
    if isinstance(value, list) and value and all(isinstance(entry, dict) and "name" in entry for entry in value):
        shown = [_file(entry) for entry in value[:_FILES_SHOWN]]
        left = len(value) - len(shown)
        return ", ".join(shown) + (f" and {left} more" if left else "")
    text = compact(value)
    if len(text) <= _LONGEST:
        return text
    if isinstance(value, list | dict):
        return f"{len(value)} entries"
    return f"{text[: _LONGEST - 1]}\N{HORIZONTAL ELLIPSIS}"


def _file(entry: dict[str, Any]) -> str:
    sha256 = entry.get("sha256")
    return str(entry["name"]) + (f" (sha256 {_short(sha256)})" if sha256 else "")
